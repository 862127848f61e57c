"""The policies of ``terraform/modules/roles`` are those that ``tiered iam-policy`` prints.

``python -m tests.unit.plan.iam_policy.test_terraform`` writes them anew.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

from tiered.plan.iam_policy import ROLES, policy

PLACE = Path(__file__).resolve().parents[4] / "terraform/modules/roles/policies.json"


def rendered() -> str:
    """The documents of all roles, with terraform's names for what it fills in."""
    documents = {role: policy(role, "${bucket_arn}", "${prefix}", kms_key_arn="${kms_key_arn}") for role in ROLES}
    return json.dumps(documents, indent=2) + "\n"


def test_terraform_has_the_policies_of_the_program() -> None:
    assert PLACE.read_text() == rendered()


_LOG = "ab/0123456789abcdef0123456789abcdef-0"
_KEYS = {
    "`topics/`": ["topics/t"],
    "`??/*/root`": [f"{_LOG}/root"],
    "`??/*/positions`": [f"{_LOG}/positions"],
    "`??/*/s/` segments": [f"{_LOG}/s/w00000001/x", f"{_LOG}/s/m00000001/x"],
    "`??/*/s/t/` staged": [f"{_LOG}/s/t/x"],
    "`txn/`": ["txn/x"],
    "`??/*/p/` pages": [f"{_LOG}/p/w00000001/x", f"{_LOG}/p/m00000001/x"],
    "`??/*/hist/`": [f"{_LOG}/hist/x"],
    "`??/*/snap/`": [f"{_LOG}/snap/x"],
    "`??/*/pin/`": [f"{_LOG}/pin/x"],
    "`??/*/aside/`": [f"{_LOG}/aside/x"],
    "`jobs/gc/`": ["jobs/gc/x"],
    "`erasures/`": ["erasures/0123456789abcdef0123456789abcdef-0/mine/receipt.json"],
    "`groups/`": ["groups/g/plan", "groups/g/members/x", "groups/g/partitions/x"],
    "`probe/`": ["probe/x"],
}
_WORDS = {"get": "s3:GetObject", "put": "s3:PutObject", "delete": "s3:DeleteObject"}


def test_the_table_of_the_readme_says_what_the_policies_do() -> None:
    text = (PLACE.parents[2] / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    begin = next(number for number, line in enumerate(lines) if line.startswith("| keys below"))
    _, *roles = (cell.strip() for cell in lines[begin].strip("|").split("|"))
    said, held = {}, {}
    for line in lines[begin + 1 : begin + 1 + len(_KEYS)]:
        name, *cells = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
        for role, cell in zip(roles, cells, strict=True):
            words = set(re.findall(r"\w+", cell.replace("create", "put").replace("(the same)", "get, put, delete")))
            said[name, role] = words & _WORDS.keys()
            statements = [each for each in policy(role, "b", "")["Statement"] if each["Resource"] != ["b"]]
            held[name, role] = {
                word
                for word, action in _WORDS.items()
                for each in statements
                for pattern in each["Resource"]
                if action in each["Action"] and any(fnmatchcase(key, pattern[2:]) for key in _KEYS[name])
            }
    assert said == held


if __name__ == "__main__":
    PLACE.write_text(rendered())
