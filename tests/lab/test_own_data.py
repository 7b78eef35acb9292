"""One's own data are found, guessed, checked and split, and mistakes in them are named."""

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from capsroute.lab.data.own.arrays import read_arrays
from capsroute.lab.data.own.images import image_size, list_images
from capsroute.lab.data.own.labelled import Labelled, check_classes, check_memory, split_samples
from capsroute.lab.data.own.tables import find_columns, read_table, read_texts
from capsroute.lab.errors import UserError
from own_data import draw_shapes, make_points, write_letters


def labelled(counts: dict[str, int], groups: list[str] | None = None, splits: list[str] | None = None) -> Labelled:
    labels = [name for name, n in counts.items() for _ in range(n)]
    return Labelled(range(len(labels)), labels, [f"file {k}" for k in range(len(labels))], groups, splits)


def write_image(path: Path, mode: str = "L", size: tuple[int, int] = (16, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)


def test_images_are_labelled_by_their_folders(tmp_path: Path) -> None:
    data = list_images(draw_shapes(tmp_path, 2, size=16))
    assert Counter(data.labels) == {"circle": 2, "square": 2, "triangle": 2}
    assert data.places[0] == "circle/000.png"
    assert data.splits is None
    assert image_size(data.items) == {"rows": 32, "columns": 32, "channels": 3, "views": 1}


def test_splits_and_groups_of_images_by_name(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            write_image(tmp_path / split / name / f"thing7_{split}.png")
    data = list_images(tmp_path, r"thing(\d+)")
    assert data.splits == ["test", "test", "train", "train", "validation", "validation"]
    assert set(data.groups or ()) == {"7"}
    with pytest.raises(UserError, match="matches no part of"):
        list_images(tmp_path, "toy")


def test_pairs_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for eye in ("left", "right"):
            write_image(tmp_path / name / f"x-{eye}.png")
    data = list_images(tmp_path)
    assert [[file.name for file in views] for views in data.items] == [["x-left.png", "x-right.png"]] * 2
    assert image_size(data.items) == {"rows": 16, "columns": 32, "channels": 1, "views": 2}
    write_image(tmp_path / "b" / "x_left.png")  # the left image of a second thing with the same name
    with pytest.raises(UserError, match="the other image of the stereo pair is missing"):
        list_images(tmp_path)
    (tmp_path / "b" / "x_left.png").unlink()
    write_image(tmp_path / "b" / "y-left.png")
    with pytest.raises(UserError, match=r"y-left\.png: the other image of the stereo pair is missing"):
        list_images(tmp_path)


def test_folders_without_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a folder with one folder for each class"):
        list_images(tmp_path / "absent")
    write_image(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"found no \.png.* in folders there"):
        list_images(tmp_path)
    write_image(tmp_path / "a" / "x.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"x\.png: an image outside of the folders of classes"):
        list_images(tmp_path)
    (tmp_path / "x.png").unlink()
    with pytest.raises(UserError, match="b: a class without images"):
        list_images(tmp_path)


def test_columns_are_guessed_by_name_and_content(tmp_path: Path) -> None:
    file = write_letters(tmp_path / "mail.csv", 3)
    assert find_columns(file) == ("message", "department")
    odd = tmp_path / "odd.csv"
    odd.write_text("k;u;v\n" + "".join(f"{k};a long line of words {k};{k % 2}\n" for k in range(8)))
    assert find_columns(odd) == ("u", "v")
    with pytest.raises(UserError, match="has no column 'body'; its columns are k, u, v: choose by --text"):
        find_columns(odd, text="body")


def test_table_without_a_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("a fine film,good\nnot so fine,bad\n" * 4)
    with pytest.raises(UserError, match=r"x\.csv: expected a header, its first line looks like data"):
        find_columns(file)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_tables_hold_the_same_texts(tmp_path: Path, suffix: str) -> None:
    rows = [("a fine film", "1"), ("dull, and long", "0"), ("ça va", "1")]
    file = tmp_path / f"films{suffix}"
    if suffix == ".jsonl":
        file.write_text("".join(json.dumps({"text": text, "label": int(label)}) + "\n" for text, label in rows))
    else:
        mark = "\t" if suffix == ".tsv" else ","
        file.write_text("".join(mark.join(f'"{cell}"' for cell in row) + "\n" for row in [("text", "label"), *rows]))
    data = read_texts(file, find_columns(file))
    assert list(zip(data.items, data.labels, strict=True)) == rows


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes("text,label\ncafé,a\n".encode(encoding))
    assert read_table(file).iloc[0].tolist() == ["café", "a"]
    assert ("not UTF-8 from line 2 on" in capsys.readouterr().err) == (encoding == "cp1252")


def test_mixed_encodings_keep_what_is_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"text,label\n" + "naïve,a\n".encode() + "café,b\n".encode("cp1252"))
    assert read_table(file)["text"].tolist() == ["naïve", "café"]


def test_rows_without_text_or_label_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.csv"
    file.write_text("text,label\na,1\n,1\nb,\nN/A,2\n")
    data = read_texts(file, find_columns(file))
    assert (data.items, data.labels) == (["a", "N/A"], ["1", "2"])
    assert "2 of 4 rows without text or label left out: x.csv, row 2; x.csv, row 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "text,label\n", "expected rows below a header"),
        ("x.csv", 'text,label\n"a', "cannot be read as a table"),
        ("x.jsonl", '{"text": 1}\n[1]\n', "line 2: expected a JSON object, got list"),
        ("x.doc", "text", "expected one of .csv, .tsv"),
        ("x.parquet", "text", r"pyarrow is not installed: pip install .capsroute\[parquet\]|cannot be read as a table"),
    ],
)
def test_damaged_tables(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        read_table(file)


def test_what_memory_cannot_hold_is_refused() -> None:
    check_memory("x.csv", 1000, "")
    with pytest.raises(UserError, match=r"x\.csv: would take 1000000\.0 GB of .* GB memory; use a part"):
        check_memory("x.csv", 10**15, "use a part")


def test_arrays_of_every_form_hold_the_same_sets(tmp_path: Path) -> None:
    arrays = make_points(2)
    offsets, label = arrays["offsets"], arrays["label"]
    sets = [arrays["x"][a:b] for a, b in pairwise(offsets)]
    padded, mask = np.zeros((6, 40, 2), np.float32), np.zeros((6, 40), bool)
    for k, vectors in enumerate(sets):
        padded[k, : len(vectors)], mask[k, : len(vectors)] = vectors, True
    names = arrays["classes"]
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", x=padded, mask=mask, label=names[label], group=np.arange(6))
    tensors = {name: arrays[name] for name in ("x", "offsets", "label")}
    save_file(tensors, tmp_path / "c.safetensors", metadata={"classes": json.dumps(names.tolist())})
    for name in ("a.npz", "b.npz", "c.safetensors"):
        data = read_arrays(tmp_path / name)
        assert list(data.labels) == names[label].tolist()
        assert all(np.array_equal(x, y) for x, y in zip(data.items, sets, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": None},
            "label: expected an array of this name, got x, offsets, classes of those that are read: x, mask",
        ),
        ({"offsets": np.array([0, 1])}, r"offsets: expected \[4\] from 0 to"),
        ({"x": np.zeros((3, 2, 3), object)}, "holds objects: store text as text"),
        ({"label": np.array(0)}, r"label: expected \[n\], a class for each set, got int64 \[\]"),
        ({"classes": np.array(["one"])}, "label: expected whole numbers from 0 to 0"),
        ({"split": np.array(["train", "a", "test"])}, "split: expected splits train, validation, test, got 'a'"),
    ],
)
def test_wrong_arrays(tmp_path: Path, change: dict, message: str) -> None:
    arrays = {name: values for name, values in (make_points(1) | change).items() if values is not None}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read_arrays(tmp_path / "x.npz")


def test_split_has_equal_shares_of_classes_and_depends_on_the_seed() -> None:
    data = labelled({"a": 50, "b": 100})
    splits = split_samples(data, test_share=0.2, validation_share=0.1, seed=0)
    counts = Counter(zip(data.labels, splits.tolist(), strict=True))
    assert [counts["a", split] for split in ("train", "validation", "test")] == [35, 5, 10]
    assert [counts["b", split] for split in ("train", "validation", "test")] == [70, 10, 20]
    assert (splits == split_samples(data, test_share=0.2, validation_share=0.1, seed=0)).all()
    assert (splits != split_samples(data, test_share=0.2, validation_share=0.1, seed=1)).any()


def test_many_samples_are_split_at_once() -> None:
    """Without groups the split of a million samples takes seconds, and not a step of Python for each."""
    data = labelled({"a": 600_000, "b": 400_000})
    begin = time.process_time()
    splits = split_samples(data, test_share=0.2, validation_share=0.1, seed=0)
    assert time.process_time() - begin < 20
    assert Counter(splits.tolist()) == {"train": 700_000, "validation": 100_000, "test": 200_000}


def test_groups_stay_together() -> None:
    groups = [str(k // 5) for k in range(100)]
    splits = split_samples(labelled({"a": 50, "b": 50}, groups), test_share=0.2, validation_share=0.2, seed=0)
    assert all(len(set(splits[k : k + 5])) == 1 for k in range(0, 100, 5))
    assert set(splits) == {"train", "validation", "test"}


def test_small_classes_are_always_trained() -> None:
    data = labelled({"a": 40, "rare": 2})
    for seed in range(5):
        splits = split_samples(data, test_share=0.5, validation_share=0.2, seed=seed)
        assert "train" in splits[40:]


@pytest.mark.parametrize("each", [2, 3, 5, 9])
def test_few_samples_are_split(each: int) -> None:
    splits = split_samples(labelled({"a": each, "b": each}), test_share=0.2, validation_share=0.1, seed=0)
    assert {"train", "test"} <= set(splits)


def test_splits_of_the_data_are_kept() -> None:
    data = labelled({"a": 10, "b": 10}, splits=["train"] * 8 + ["test"] * 2 + ["train"] * 8 + ["test"] * 2)
    splits = split_samples(data, test_share=0.2, validation_share=0.2, seed=0)
    assert [k for k, split in enumerate(splits) if split == "test"] == [8, 9, 18, 19]
    assert Counter(splits.tolist())["validation"] == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (labelled({"a": 5}), "expected samples of at least two classes, got a"),
        (labelled({"a": 5, "typo": 1}), r"class 'typo' has one sample \(file 5\).*--set min_samples=2"),
        (labelled({"a": 1, "b": 1}), "class 'a' has one sample"),
        (labelled({"a": 2, "b": 2}, groups=["x", "y", "z", "z"]), "class 'b' has one group"),
        (labelled({"a": 2, "b": 1}, splits=["train", "test", "test"]), "its class 'b' is in test and not in train"),
        (labelled({"a": 1, "b": 1}, splits=["train", "train"]), "found none in the split 'test'"),
    ],
)
def test_classes_that_cannot_be_trained(data: Labelled, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_classes(data, "data", 1)


def test_small_classes_can_be_left_out() -> None:
    kept = check_classes(labelled({"a": 5, "b": 4, "typo": 1}), "data", 2)
    assert Counter(kept.labels) == {"a": 5, "b": 4}
