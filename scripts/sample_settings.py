"""Write deploy/tieredlog.toml, the sample of all settings, from the table in tiered/program/settings.py."""

from __future__ import annotations

from pathlib import Path

from tiered.program.settings import DAEMON, SETTINGS, TABLE, Scalar

TARGET = Path(__file__).parents[1] / "deploy" / "tieredlog.toml"


def sample_file() -> str:
    """Return a TOML file of all settings, each commented out with its sentence, its kind and its variable."""
    lines = [
        "# Settings of tiered and tiered-uploader: pass this file with --config, or name it in TIERED_CONFIG.",
        "# Each line shows the default, or an example where there is none. ${NAME} is taken from the environment.",
        "# An option has precedence over the variable, the variable over the file. Credentials are never in it.",
    ]
    for table, settings in (("", SETTINGS), (TABLE, DAEMON)):
        lines += ["", f"[{table}]"] if table else []
        for setting in settings:
            value = setting.example if setting.default is None else setting.default
            shown = str(value).lower() if isinstance(value, bool) else value if _is_number(value) else f'"{value}"'
            sentence = f"# {setting.about[0].upper()}{setting.about[1:]}."
            where = setting.variable + (f", {setting.flag}" if setting.has_option else "")
            lines += ["", sentence, f"# {setting.kind}; {where}", f"# {setting.name} = {shown}"]
    return "\n".join(lines) + "\n"


def _is_number(value: Scalar) -> bool:
    return str(value).isdigit() and len(str(value)) < len("123456789012")  # an account id is a text


if __name__ == "__main__":
    TARGET.write_text(sample_file())
