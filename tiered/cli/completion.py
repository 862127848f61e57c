"""``tiered completion SHELL``: print the code with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from tiered.program.application import Application, Command, pass_application

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
PROGRAMS = ("tiered", "tiered-uploader")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@pass_application
def command(app: Application, shell: str) -> int:
    """Print the code with which a shell completes commands and options.

    \b
    Examples:
      tiered completion bash > ~/.local/share/bash-completion/completions/tiered
      tiered completion zsh > ~/.zfunc/_tiered
      tiered completion fish > ~/.config/fish/completions/tiered.fish
    """
    text: list[str] = []
    for program in PROGRAMS:
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        # The command object is needed only to complete; the code names the program and its variable.
        text += SHELLS[shell](click.Command(program), {}, program, variable).source().splitlines()
    return app.out.result("completion", {"shell": shell, "code": "\n".join(text)}, text)
