"""What the JSON files of a memory map say, and whether they are whole.

    {
     "format": "relive memory map",
     "version": 1,
     "id": "457ef950f6e34c6cbdb0f38e8c838895",      no other memory map is called so
     "schema": [["observation", "<f4", [3]], ...],   path, dtype and shape of each field
     "capacity": 1000,
     "blocks": [{"file": "rows-0.bin", "fields": ["observation"], "bytes": 12000}, ...],
     "crc32": 123456789                              of all bytes before the comma above
    }

A block is an array in the order of C: of one field [capacity, *shape]; of several [capacity], the fields of each row
side by side, without gaps.
"""

import dataclasses
import json
import re
import sys
from typing import Any
import uuid
import zlib

from relive import errors
from relive.persistence import settings
from relive.persistence import state
from relive.schema import schema as schema_lib
from relive.storage import memory

VERSION = 1
_FORMAT = "relive memory map"
_BEGIN = re.compile(rb'\{\n "format": "relive memory map",\n "version": ([1-9]\d{0,8}),\n')
_SEAL = re.compile(rb',\n "crc32": (\d{1,10})\n\}\n')
_ID = re.compile(r"[0-9a-f]{32}")


def rows_file(number: int) -> str:
    """Answers the name of the file of a block."""
    return f"rows-{number}.bin"


def sealed(members: dict[str, Any]) -> bytes:
    r"""Answers a JSON object whose last member is the CRC-32 of all bytes before it.

    >>> from relive.storage import map_manifest
    >>> map_manifest.sealed({"generation": 3})
    b'{\n "generation": 3,\n "crc32": 360426098\n}\n'
    """
    content = json.dumps(members, indent=1, allow_nan=False).encode().removesuffix(b"\n}")
    return content + b',\n "crc32": %d\n}\n' % zlib.crc32(content)


def unsealed(file: str, content: bytes) -> state.Given:
    """Answers the members that `sealed` made `content` of.

    Raises:
        CheckpointError: `content` was changed, or is something else; the message begins with `file`.
    """
    start = content.rfind(b",\n")
    seal = _SEAL.fullmatch(content, start)
    if seal is None or int(seal[1]) != zlib.crc32(content[:start]):
        raise errors.CheckpointError(f"{file} was changed or cut: its CRC-32 is another")
    try:
        return state.Given(json.loads(content), {})
    except (ValueError, RecursionError) as error:
        raise errors.CheckpointError(f"{file} is no JSON") from error


@dataclasses.dataclass(frozen=True)
class Description:
    """What a memory map says of itself."""

    id: str
    schema: schema_lib.Schema
    capacity: int

    @property
    def sizes(self) -> list[int]:
        """The bytes of each block."""
        fields = self.schema.fields
        blocks = schema_lib.blocks_of(self.schema)
        return [self.capacity * sum(fields[path].nbytes for path in paths) for paths in blocks]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The file of each block, the fields in it and its bytes."""
        blocks = zip(schema_lib.blocks_of(self.schema), self.sizes, strict=True)
        return [
            {"file": rows_file(number), "fields": list(paths), "bytes": size}
            for number, (paths, size) in enumerate(blocks)
        ]

    def encoded(self) -> bytes:
        """Answers the manifest."""
        return sealed(
            {
                "format": _FORMAT,
                "version": VERSION,
                "id": self.id,
                "schema": settings.encoded(self.schema),
                "capacity": self.capacity,
                "blocks": self.blocks,
            }
        )


def new(schema: schema_lib.Schema, capacity: int) -> Description:
    """Answers the description of a memory map to be made.

    Raises:
        ArgumentError: No file can hold it.
    """
    description = Description(uuid.uuid4().hex, schema, capacity)
    if sum(description.sizes) > sys.maxsize:
        raise errors.ArgumentError(f"capacity must be of at most {sys.maxsize} bytes in all, got {capacity} rows")
    try:
        same = decoded("it", description.encoded()) == description
        memory.ColumnStorage(schema, 1)
    except (errors.CheckpointError, ValueError) as error:
        raise errors.ArgumentError(f"schema must be one that files can hold: {error}") from error
    if not same:
        raise errors.ArgumentError(f"schema must be one that files can hold, got {schema}")
    return description


def decoded(file: str, content: bytes) -> Description:
    """Answers what a manifest describes.

    Raises:
        CheckpointError: It is that of something else, of a newer version, was changed, or does not fit together; the
            message begins with `file`.
    """
    begin = _BEGIN.match(content)
    if begin is None:
        raise errors.CheckpointError(f"{file} is no manifest of a relive memory map")
    version = int(begin[1])
    if version != VERSION:
        raise errors.CheckpointError(
            f"{file} is of format version {version}, and this relive reads {VERSION}: update relive"
        )
    given = unsealed(file, content)
    try:
        identity = given.text("id")
        if not _ID.fullmatch(identity):
            raise given.refused("id", "32 digits of hexadecimal", identity)
        schema = settings.made(given, {"schema": None})["schema"]
        if schema is None:
            raise given.refused("schema", "one", None)
        description = Description(identity, schema, given.integer("capacity", 1))
        if given.value("blocks") != description.blocks:
            raise given.refused("blocks", "those of its schema and capacity", given.value("blocks"))
    except (errors.CheckpointError, RecursionError) as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error
    return description


def encoded_state(identity: str, generation: int) -> bytes:
    """Answers the file that says of which generation the rows are."""
    return sealed({"id": identity, "generation": generation})


def decoded_state(file: str, content: bytes, identity: str) -> int:
    """Answers the generation that the file of the memory map of that id says.

    Raises:
        CheckpointError: It was changed, or is that of another memory map; the message begins with `file`.
    """
    given = unsealed(file, content)
    try:
        if given.text("id") != identity:
            raise given.refused("id", repr(identity), given.value("id"))
        return given.integer("generation")
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error
