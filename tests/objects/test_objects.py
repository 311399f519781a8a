"""Objects in a folder: separate by tenant, checked by their digest, and gone when they were deleted."""

from pathlib import Path

import pytest

from quire.errors import IntegrityViolation, InvalidConfiguration, ObjectStorageUnavailable
from quire.objects import MissingObject, ObjectStorage, make_object_name

TENANTS = ("a", "a/b", "a=2fb", "ab", "ä", "../a", ".", "a b", "\ud800")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def objects(folder: Path) -> ObjectStorage:
    return ObjectStorage(f"file://{folder}")


async def test_tenants_have_separate_objects(objects: ObjectStorage, folder: Path):
    for number, tenant in enumerate(TENANTS):
        await objects.put(tenant, make_object_name("blobs", bytes([number])), bytes([number]))
    for number, tenant in enumerate(TENANTS):
        [name] = await objects.list(tenant)
        assert await objects.get(tenant, name) == bytes([number])
    assert {each.parent.parent.parent for each in folder.rglob("*-*") if each.is_file()} == {folder}


async def test_two_objects_with_the_same_bytes_are_deleted_one_by_one(objects: ObjectStorage):
    first, second = make_object_name("blobs", b"bytes"), make_object_name("blobs", b"bytes")
    for name in (first, second):
        await objects.put("a", name, b"bytes")
    for _ in range(2):
        await objects.delete("a", first)
    with pytest.raises(MissingObject):
        await objects.get("a", first)
    assert await objects.get("a", second) == b"bytes"


async def test_a_changed_object_is_not_returned(objects: ObjectStorage, folder: Path):
    name = make_object_name("blobs", b"bytes")
    await objects.put("a", name, b"bytes")
    folder.joinpath("tenant-a", name).write_bytes(b"other")
    with pytest.raises(IntegrityViolation, match="does not have the bytes"):
        await objects.get("a", name)


async def test_a_folder_that_is_none_is_storage_that_is_away(objects: ObjectStorage, folder: Path):
    folder.rmdir()
    folder.write_bytes(b"")
    with pytest.raises(ObjectStorageUnavailable):
        await objects.put("a", make_object_name("blobs", b"bytes"), b"bytes")
    with pytest.raises((ObjectStorageUnavailable, MissingObject)):
        await objects.get("a", make_object_name("blobs", b"bytes"))


def test_a_wrong_url_is_refused():
    with pytest.raises(InvalidConfiguration, match="object_storage_url"):
        ObjectStorage("nowhere")
