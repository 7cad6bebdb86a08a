"""What another user may have made in a shared folder is neither followed nor locked nor trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vla_accel_ros.private_files import open_private, private_folder
from vla_accel_ros.tools.running.graph import claim_domain


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that everybody shares."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_ours_alone_and_a_file_is_kept_as_it_is():
    with open_private("locks", "one") as file:
        file.write("kept")
    folder = private_folder("locks")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "one").stat().st_mode) == 0o600
    with open_private("locks", "one") as file:
        assert file.read() == "kept"


def test_a_folder_of_ours_that_others_could_enter_is_closed_to_them():
    private_folder("locks").mkdir(mode=0o755)
    open_private("locks", "one").close()
    assert stat.S_IMODE(private_folder("locks").stat().st_mode) == 0o700


def test_a_domain_is_not_claimed_through_a_link(shared):
    elsewhere = shared / "elsewhere"
    elsewhere.mkdir()
    private_folder("domains").symlink_to(elsewhere)
    with pytest.raises(RuntimeError, match=r"vla_accel_ros-domains-\d+ cannot"):
        claim_domain()
    assert list(elsewhere.iterdir()) == []


def test_a_file_of_ours_is_not_locked_through_a_link(shared):
    precious = shared / "precious"
    precious.write_text("precious")
    private_folder("locks").mkdir()
    (private_folder("locks") / "one").symlink_to(precious)
    with pytest.raises(RuntimeError, match="Too many levels of symbolic links"):
        open_private("locks", "one")
    assert precious.read_text() == "precious"


def test_what_is_no_file_is_refused():
    private_folder("locks").mkdir()
    os.mkfifo(private_folder("locks") / "one")
    with pytest.raises(RuntimeError, match=r"/one .*TMPDIR"):
        open_private("locks", "one")
    private_folder("other").write_text("")
    with pytest.raises(RuntimeError, match="Not a directory"):
        open_private("other", "one")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_another_user_made_is_refused(what):
    open_private("locks", "one").close()
    path = private_folder("locks")
    os.chown(path if what == "folder" else path / "one", 4711, 4711)
    with pytest.raises(RuntimeError, match="user 4711"):
        open_private("locks", "one")


def test_two_claims_are_of_two_domains():
    first, lock = claim_domain()
    with lock:
        second, other = claim_domain()
        other.close()
    assert first != second
