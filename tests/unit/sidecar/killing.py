"""A sidecar that is killed at each of its effects on the private directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.unit.sidecar.broker import Broker
from tiered.local.disk.files import Files, PosixFiles
from tiered.sidecar.mirror import Mirror, beside


class Dead(BaseException):
    """The process was killed."""


class Dying(PosixFiles):
    """Dies before effect ``at``."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _effect(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Dead


def _dying(name: str) -> Callable[..., Any]:
    def call(self: Dying, *arguments: Any) -> Any:
        self._effect()
        return getattr(PosixFiles, name)(self, *arguments)

    return call


for _name in ("link", "rename", "unlink", "replace", "open_write", "make_directory", "remove_directory"):
    setattr(Dying, _name, _dying(_name))


def killed_at_each_effect(
    broker: Broker, tmp_path: Path, mirror_of: Callable[[Broker, Files], Mirror]
) -> Iterator[None]:
    """A look that is killed at its first effect, at its second, ...: each from where bucket and mirror are now."""
    places, saved = {"bucket": tmp_path / "bucket", "mirror": beside(broker.path)}, tmp_path / "saved"
    for name, place in places.items():
        shutil.copytree(place, saved / name)
    for at in range(1000):
        for name, place in places.items():
            shutil.rmtree(place)
            shutil.copytree(saved / name, place)
        try:
            mirror_of(broker, Dying(at)).scan()
        except Dead:
            yield
        else:
            break
    assert at > 20
