"""Functions that open the bucket of a command line, with its settings."""

from __future__ import annotations

from typing import cast

from tiered.config import S3_WORDS, S3Keywords
from tiered.errors import ConfigError, NotFoundError
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.store.base import Store
from tiered.store.limit import Limits
from tiered.store.location import StoreLocation, split_query
from tiered.store.options import StoreOptions


def store_options(app: Application, url: str) -> S3Keywords:
    """Return the S3 settings for ``url``. Its query has precedence over that of --remote, and that over the settings.

    For other stores than S3, variables of the environment are ignored, and S3 settings in the file raise ConfigError,
    which names the file.
    """
    scheme = StoreLocation.parse(url, environ={}).scheme
    given = {word: app.values[word] for word in S3_WORDS if app.values[word].value is not None}
    if scheme == "s3":
        settings = {word: value.value for word, value in given.items()}
        of_remote = split_query(app.remote)[1] if app.remote is not None and app.remote.startswith("s3://") else {}
        return cast("S3Keywords", {**settings, **of_remote, **split_query(url)[1]})
    for word, value in given.items():
        if not value.origin.startswith("environment"):
            raise ConfigError(
                f"{word} ({value.origin}) does not apply to {scheme}://", hint=f"leave {word} out: it is for s3:// only"
            )
    return {}


def location(app: Application) -> StoreLocation:
    """Return the parsed URL of the bucket."""
    url = app.need_remote()
    place = StoreLocation.parse(url, **store_options(app, url))
    try:
        place.require_folder()
    except NotFoundError as error:
        raise NotFoundError(f"the remote tier was not found: {error.message}", hint="correct --remote") from error
    return place


def open_remote(app: Application, limits: Limits | None = None) -> Store:
    """Open the bucket alone. Requests are retried for at most :data:`STORE_DEADLINE_SECONDS`, because a user waits."""
    options = StoreOptions(
        clock=app.clock,
        ids=app.ids,
        deadline_seconds=STORE_DEADLINE_SECONDS,
        limits=limits,
        create=False,
        notice_outages=True,
    )
    return location(app).open(options)
