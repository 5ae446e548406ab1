"""Damaged or malicious bytes and messages: a word about them, or nothing; never an object.

A case is its number: a failure prints it, and `check_*(number)` repeats it. A few hundred run
always, ten thousand of each kind in `make test-deploy`.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedkin.durable import DAMAGE, load_arrays, save_arrays, sealed
from fedkin.engines import InProcess, resume
from fedkin.engines.files import read_reply, write_reply
from fedkin.engines.site import SiteHalf, SiteMemory
from fedkin.privacy import Ledger
from fedkin.protocol import LARGEST_MESSAGE, Ask, Field, inspect
from tests.conformance.cases import CASES, ragged_federation

PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CASE = next(case for case in CASES if case.name == "consensus_lasso")
DATA = ragged_federation(3)
SETTINGS = CASE.chosen(max_rounds=3, tol=0.0)
SCHEMA = {
    "coef": Field(("K", "d"), "coefficients"),
    "rows": Field((), "number of rows", least=0.0),
    "order": Field(("K",), "which is which", dtype="int64", bound=1e6),
}
DIMS = {"K": 2}
# What a run may end with when its files are damaged: an error in words.
WORDS = (ValueError, RuntimeError, OSError)


def numbers_only(arrays):
    return all(isinstance(a, np.ndarray) and not a.dtype.hasobject for a in arrays.values())


# ------------------------------------------------------------------ messages


def any_array(rng):
    shape = tuple(rng.integers(0, 4, rng.integers(0, 4)))
    kind = rng.choice(["f8", "f4", "i8", "U3", "O", "c16", "M8[s]", "?", "V8"])
    made = np.zeros(shape, kind)
    if kind == "f8" and made.size:
        made.flat[0] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0, 1e101])
    return made


def any_thing(rng, depth=0):
    """Something that could come over a wire, or could not."""
    which = rng.integers(0, 12 if depth < 3 else 9)
    if which == 9:
        names = ("arrays", "reason", "field", "version", "coef", "rows", "order", 7, "x" * 500)
        return {
            names[int(rng.integers(len(names)))]: any_thing(rng, depth + 1)
            for _ in range(rng.integers(0, 5))
        }
    if which >= 10:
        return [any_thing(rng, depth + 1) for _ in range(rng.integers(0, 4))]
    simple = (None, 3, -1.5, "LATE", "../../etc/passwd", b"\x80\x04N.", True, float("nan"))
    return any_array(rng) if which == 8 else simple[which]


def check_message(number):
    """The gate takes whatever comes; what it lets through is as declared."""
    rng = np.random.default_rng(number)
    batches = []
    for k in range(int(rng.integers(1, 5))):
        arrays = {
            "coef": rng.normal(size=(1, 2, 3)),
            "rows": np.array([5.0]),
            "order": np.array([[0, 1]]),
        }
        for _ in range(int(rng.integers(0, 3))):
            name = rng.choice(["coef", "rows", "order", "more"])
            arrays[str(name)] = any_thing(rng) if rng.random() < 0.3 else any_array(rng)
        batches.append((np.array([k]), arrays))
    replies, faults = inspect(SCHEMA, batches, DIMS)
    heard = [] if replies is None else replies.clients.tolist()
    assert sorted([*heard, *faults]) == list(range(len(batches))), number
    if replies is not None:
        assert set(replies) == set(SCHEMA) and numbers_only(replies.arrays)
        assert all(np.isfinite(replies[name]).all() for name in SCHEMA)
        assert (replies["rows"] >= 0).all()


def check_reply_of_flare(number):
    """What a site says over FLARE, whatever it is."""
    from fedkin.engines.nvflare.server_process import _version, _whole, understood

    rng = np.random.default_rng([1, number])
    said = any_thing(rng)
    if rng.random() < 0.5:
        said = {"reason": any_thing(rng), "field": any_thing(rng), "arrays": {"a": any_thing(rng)}}
    arrays, fault = understood(said, ("age",))
    assert isinstance(arrays, dict) and (fault is None or str(fault)), number
    assert isinstance(_version(said), str) and isinstance(_whole(said, "version"), int)
    if fault is None:
        inspect(SCHEMA, [(np.array([0]), arrays)], DIMS)


@cache
def site_half():
    folder = tempfile.mkdtemp(dir=PLACE)
    clients = DATA.take(np.array([0]))
    return SiteHalf(CASE.algorithm, SETTINGS.for_sites(), clients, 3, "run", folder)


def check_question(number):
    """A site answers a question of any form with declared arrays or a word."""
    rng = np.random.default_rng([2, number])
    step = str(rng.choice([*CASE.algorithm.steps, "../x", ""]))
    known = CASE.algorithm.steps.get(step)
    common, personal = {}, {}
    for schema, sent, lead in (
        (known.common if known else {}, common, ()),
        (known.personal if known else {}, personal, (1,)),
    ):
        for name, field in schema.items():
            shape = tuple(DATA.n_features if isinstance(s, str) else s for s in field.shape)
            sent[name] = np.full((*lead, *shape), rng.choice([1.0, np.nan, 1e200]))
            if rng.random() < 0.3:
                sent[name] = any_array(rng)
    fields = tuple(rng.choice(["coef", "x"], int(rng.random() < 0.2)))
    asked = Ask(step, common, personal, fields)
    leaves = site_half().answer(number + int(rng.integers(0, 2)), asked, 0)
    assert leaves.fault is not None or set(leaves.arrays) == set(known.replies(fields)), number
    assert numbers_only(leaves.arrays), number


# ------------------------------------------------------------------ files


def spoil(path, rng):
    """Flip bits, cut, repeat or replace a part of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        if not content:
            break
        place = int(rng.integers(len(content)))
        how = rng.integers(0, 5)
        if how == 0:
            content[place] ^= 1 << int(rng.integers(8))
        elif how == 1:
            del content[place:]
        elif how == 2:
            content[place:place] = rng.bytes(int(rng.integers(1, 20)))
        elif how == 3:
            content[place : place + 4] = bytes(rng.choice([b"9999", b"null", b"\xff" * 4, b"[]{}"]))
        else:
            content = bytearray(rng.bytes(int(rng.integers(0, 200))))
    path.write_bytes(content)


@cache
def finished_run():
    """A run of three rounds with its journal, made once."""
    folder = Path(tempfile.mkdtemp(dir=PLACE)) / "run"
    run = InProcess(journal=folder).run(CASE.algorithm, SETTINGS, DATA, 3)
    return folder, run.result["coef"]


def check_journal(number):
    """A damaged journal gives the same bits, or an error in words."""
    rng = np.random.default_rng([3, number])
    whole, coef = finished_run()
    folder = Path(tempfile.mkdtemp(dir=PLACE)) / "run"
    shutil.copytree(whole, folder)
    try:
        files = sorted(path for path in folder.iterdir() if path.stat().st_size)
        spoil(files[int(rng.integers(len(files)))], rng)
        try:
            run = resume(folder, CASE.algorithm, DATA)
        except WORDS as error:
            assert str(error), number
        else:
            np.testing.assert_array_equal(run.result["coef"], coef, str(number))
    finally:
        shutil.rmtree(folder.parent)


def check_memory(number):
    """A damaged memory is a fault, or the one before it; never another memory."""
    rng = np.random.default_rng([4, number])
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    try:
        memory = SiteMemory(folder)
        for tag in (1, 2):
            memory.offer(tag, {"weights": np.full(3, float(tag))})
            assert memory.acknowledge(tag) is None
        memory.offer(3, {"weights": np.full(3, 3.0)})
        files = sorted(folder.glob("*.npz"))
        spoil(files[int(rng.integers(len(files)))], rng)
        again, asked = SiteMemory(folder), int(rng.integers(1, 4))
        fault = again.acknowledge(asked)
        kept = again.read()
        if fault is None and kept is not None:
            np.testing.assert_array_equal(kept["weights"], float(asked), str(number))
    finally:
        shutil.rmtree(folder)


def check_ledger(number):
    """A damaged ledger can be read as far as it is whole, and goes on."""
    rng = np.random.default_rng([5, number])
    folder = Path(tempfile.mkdtemp(dir=PLACE))
    try:
        ledger = Ledger(folder)
        for round_ in (1, 2, 3):
            ledger.record("run", round_, "step", ["a"], {"coef": np.arange(4.0)})
        files = sorted(folder.iterdir())
        spoil(files[int(rng.integers(len(files)))], rng)
        ledger = Ledger(folder)
        ledger.account()
        for line in ledger.lines():
            try:
                values = ledger.values(line)
            except DAMAGE:
                continue
            assert numbers_only(values), number
        ledger.record("run", 4, "step", ["a"], {"coef": np.ones(4)})
        assert ledger.lines()[-1]["round"] == 4, number
    finally:
        shutil.rmtree(folder)


@cache
def reply_file():
    case = next(case for case in CASES if case.name == "odcl")
    path = Path(tempfile.mkdtemp(dir=PLACE)) / "a.npz"
    client = ragged_federation(3).take(np.array([2]))
    asked = Ask("model")
    write_reply(path, case.algorithm, asked, client, case.chosen(), disclosure=None)
    return path


def check_reply_file(number):
    """A file that is no reply is refused by its name."""
    rng = np.random.default_rng([6, number])
    path = reply_file().with_name(f"{number}.npz")
    path.write_bytes(reply_file().read_bytes())
    try:
        spoil(path, rng)
        try:
            assert numbers_only(read_reply(path).arrays), number
        except ValueError as error:
            assert "is not a reply file of a fedkin site" in str(error), number
    finally:
        path.unlink()


CHECKS = {
    "message": (check_message, 300),
    "reply of flare": (check_reply_of_flare, 300),
    "question": (check_question, 60),
    "journal": (check_journal, 40),
    "memory": (check_memory, 60),
    "ledger": (check_ledger, 60),
    "reply file": (check_reply_file, 100),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKS)
def test_damage_is_a_word(kind):
    check, n_cases = CHECKS[kind]
    for number in range(n_cases):
        check(number)


@pytest.mark.deploy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKS)
def test_ten_thousand_damages_are_words(kind):
    for number in range(int(os.environ.get("FEDKIN_FUZZ") or 10_000)):
        CHECKS[kind][0](number)


# ------------------------------------------------------------------ sizes


def test_a_file_that_claims_to_be_huge_costs_no_memory(tmp_path):
    path = tmp_path / "huge.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("coef.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 28,)}
        )
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20 < LARGEST_MESSAGE
    with pytest.raises(ValueError, match="more than 268,435,456"):
        load_arrays(path, most_bytes=LARGEST_MESSAGE)
    with pytest.raises(ValueError, match="is not a reply file"):
        read_reply(path)


def test_a_head_that_lies_about_its_array_is_damage(tmp_path):
    content = sealed({"coef": np.arange(4.0)})
    path = tmp_path / "lie.npz"
    path.write_bytes(content.replace(b"(4,)", b"(4e9"[:4]))
    with pytest.raises(DAMAGE):
        load_arrays(path)
    with zipfile.ZipFile(path, "w") as archive, archive.open("coef.npy", "w") as file:
        head = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(bytes(32))
    with pytest.raises(ValueError, match="does not hold the array that it says"):
        load_arrays(path)


def test_objects_are_not_read(tmp_path):
    path = tmp_path / "object.npz"
    np.savez(path, allow_pickle=True, a=np.array([{}, pickle], dtype=object)[:1])
    with pytest.raises(DAMAGE):
        load_arrays(path)


def test_arrays_come_back_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "plain": rng.normal(size=(3, 4)),
        "turned": np.asfortranarray(rng.normal(size=(3, 4))),
        "empty": np.empty((0, 3)),
        "one": np.array(2.5),
        "words": np.array(json.dumps({"a": "ö"})),
        "flags": np.array([True, False]),
    }
    save_arrays(tmp_path / "a.npz", arrays)
    back = load_arrays(tmp_path / "a.npz", seal=True)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype and back[name].flags.writeable


def test_flare_is_told_the_largest_message(tmp_path, monkeypatch):
    from fedkin.engines.nvflare import participants

    seen = {}
    monkeypatch.setattr(participants.subprocess, "Popen", lambda *a, **k: seen.update(k["env"]))
    participants.Kit(tmp_path, "client", "a", "localhost", 1).start({})
    from nvflare.fuel.f3.comm_config import CommConfigurator
    from nvflare.fuel.utils.config_service import ConfigService

    # FLARE keeps what it has read once; a process that has used it before has other limits.
    monkeypatch.setattr(ConfigService, "_var_values", {})
    for name in participants.MESSAGE_LIMITS:
        monkeypatch.setenv(name, seen[name])
    assert CommConfigurator().get_streaming_max_blob_size() == LARGEST_MESSAGE
    assert CommConfigurator().get_max_message_size() == LARGEST_MESSAGE
