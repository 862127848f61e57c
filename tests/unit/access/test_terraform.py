"""The policies of ``terraform/modules/roles`` are those that ``tiered iam-policy`` prints.

``python -m tests.unit.access.test_terraform`` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from tiered.plan.access import ROLES, policy

PLACE = Path(__file__).resolve().parents[3] / "terraform/modules/roles/policies.json"


def rendered() -> str:
    """The documents of all roles, with terraform's names for what it fills in."""
    documents = {role: policy(role, "${bucket_arn}", "${prefix}", kms_key_arn="${kms_key_arn}") for role in ROLES}
    return json.dumps(documents, indent=2) + "\n"


def test_terraform_has_the_policies_of_the_program() -> None:
    assert PLACE.read_text() == rendered()


if __name__ == "__main__":
    PLACE.write_text(rendered())
