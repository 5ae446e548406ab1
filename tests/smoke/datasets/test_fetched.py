from pathlib import Path

import numpy as np
import pytest

from fedkin.datasets import (
    DataMissing,
    data_folder,
    fetched,
    load_cifar10_two_classes,
    load_fashion_mnist,
    load_mnist,
)

LOADERS = {
    load_mnist: fetched.MNIST,
    load_fashion_mnist: fetched.FASHION_MNIST,
    load_cifar10_two_classes: fetched.CIFAR10_TWO_CLASSES,
}
every_loader = pytest.mark.parametrize("load", LOADERS, ids=lambda f: f.__name__)


def present(load):
    """The data, or a skip that says what is missing."""
    path = data_folder() / LOADERS[load].file
    if not path.is_file():
        pytest.skip(f"{path} is absent; set FEDKIN_DATA to the folder that has {path.name}")
    return load()


def test_the_environment_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("FEDKIN_DATA")
    assert data_folder() == Path.home() / ".fedkin" / "data"


@every_loader
def test_absent_data_are_missed_with_folder_file_home_and_remedy(load, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    with pytest.raises(DataMissing) as caught:
        load()
    message, source = str(caught.value), LOADERS[load]
    for word in (str(tmp_path), source.file, source.home, source.arrays, "FEDKIN_DATA"):
        assert word in message
    assert "://" not in message


@every_loader
def test_another_file_of_that_name_is_refused(load, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    np.savez_compressed(tmp_path / LOADERS[load].file, X_train=np.zeros(3))
    with pytest.raises(DataMissing, match=f"sha256 is .*, not {LOADERS[load].sha256}"):
        load()


def test_mnist_is_the_known_one():
    data = present(load_mnist)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(data.y_train), counts)
    assert data.X_train.shape == (60000, 28, 28) and data.X_test.shape == (10000, 28, 28)
    np.testing.assert_allclose(data.X_train.mean() / 255, 0.13066, atol=5e-6)
    assert data.class_names[7] == "7" and len(data.class_names) == 10


def test_fashion_mnist_is_the_known_one():
    data = present(load_fashion_mnist)
    np.testing.assert_array_equal(np.bincount(data.y_train), np.full(10, 6000))
    np.testing.assert_array_equal(np.bincount(data.y_test), np.full(10, 1000))
    assert data.X_train.shape == (60000, 28, 28)
    np.testing.assert_allclose(data.X_train.mean() / 255, 0.28604, atol=5e-6)
    assert data.class_names[9] == "ankle boot" and len(data.class_names) == 10


def test_two_classes_of_cifar10_are_airplanes_and_automobiles():
    data = present(load_cifar10_two_classes)
    assert data.class_names == ("airplane", "automobile")
    np.testing.assert_array_equal(np.bincount(data.y_train), [5000, 5000])
    np.testing.assert_array_equal(np.bincount(data.y_test), [1000, 1000])
    assert data.X_train.shape == (10000, 32, 32, 3) and data.X_train.dtype == np.uint8
