import pytest

from relive import errors
from relive.common import claims


class Owner:
    """What a claim can be of."""


def test_a_block_that_raises_gives_up_what_blocks_in_it_claimed() -> None:
    things, owners = [object(), object()], [Owner(), Owner()]
    with claims.kept_on_success():
        with pytest.raises(KeyError), claims.kept_on_success():
            with claims.kept_on_success():
                claims.claim("storage", things[0], owners[0])
            raise KeyError
        claims.claim("storage", things[0], owners[1])
        claims.claim("storage", things[1], owners[1])
    for thing in things:
        with (
            pytest.raises(errors.ArgumentError, match="^storage must belong to one buffer alone, got that of a Owner"),
            claims.kept_on_success(),
        ):
            claims.claim("storage", thing, owners[0])
    del owners[1]
    with claims.kept_on_success():
        claims.claim("storage", things[0], owners[0])
