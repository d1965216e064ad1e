"""The Spaces that are written: what the hub reads of them, what they need, and that the page starts from there."""

from __future__ import annotations

from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from scripts.make_space import MARK, PRODUCT, PROFILES, ROOT, Profile, gradio_version, main, make, requirements
from tests.kernels.trees import ROOT as TREE

FRONT = ("title", "sdk", "sdk_version", "python_version", "app_file", "license", "short_description")


def front_matter(folder):
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return dict(line.split(": ", 1) for line in matter.splitlines())


@pytest.mark.parametrize("name", PROFILES)
def test_a_space_holds_the_product_and_the_versions_that_its_hardware_has(name, tmp_path):
    make(name, tmp_path / "space")
    made = {path.name for path in (tmp_path / "space").iterdir()}
    assert made == {*(part.split("/")[0] for part in PRODUCT), MARK, "README.md", "requirements.txt"}
    assert not list((tmp_path / "space").rglob("__pycache__"))
    matter = front_matter(tmp_path / "space")
    assert set(FRONT) <= set(matter)
    assert len(matter["short_description"]) <= 60, "the hub's limit"
    assert matter["sdk_version"] == version("gradio")
    required = (tmp_path / "space" / "requirements.txt").read_text()
    assert "gradio" not in required
    assert "spaces" not in required
    expected = {
        "cpu": ("cpu-basic", '"3.12"', "torch==2.13.0+cpu", "triton==3.7.1"),
        "gpu": ("l4x1", '"3.12"', "torch==2.13.0", "triton==3.7.1"),
        "zero": (None, '"3.12.12"', "torch==2.11.0", "triton==3.6.0"),
    }[name]
    torch, triton = (next(line for line in required.splitlines() if line.startswith(p)) for p in ("torch", "triton"))
    assert (matter.get("suggested_hardware"), matter["python_version"], torch, triton.split(";")[0]) == expected


def test_a_space_is_rewritten_without_files_that_have_gone(tmp_path):
    make("cpu", tmp_path)
    (tmp_path / "kernels" / "gone.py").touch()
    make("gpu", tmp_path)
    assert not (tmp_path / "kernels" / "gone.py").exists()
    assert front_matter(tmp_path)["suggested_hardware"] == "l4x1"


def test_another_folder_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["cpu", str(tmp_path)])
    assert ended.value.code == 2
    assert "exists and is not a Space that this script wrote; name another folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "app.py").touch()
    for place in (tmp_path, tmp_path / "thesis.txt", ROOT):
        with pytest.raises(FileExistsError):
            make("cpu", place)


def test_the_hub_can_install_what_is_required_beside_what_it_adds():
    """It installs gradio[mcp,oauth], whose extras bound other packages."""
    needs = [Requirement(text) for text in requires("gradio")]
    added = [one for one in needs if one.marker and any(one.marker.evaluate({"extra": e}) for e in ("mcp", "oauth"))]
    assert "pydantic" in {one.name for one in added}
    for profile in PROFILES.values():
        lines = requirements(profile, (ROOT / "requirements.txt").read_text()).splitlines()
        ours = {one.name: one for line in lines if line[0].isalpha() for one in [Requirement(line.partition("#")[0])]}
        for bound in (one for one in added if one.name in ours):
            tried = [clause.version for one in (bound, ours[bound.name]) for clause in one.specifier]
            assert any(bound.specifier.contains(v) and ours[bound.name].specifier.contains(v) for v in tried), bound


def test_a_replaced_package_must_be_required():
    with pytest.raises(ValueError, match=r"requirements\.txt does not require jax"):
        requirements(Profile("", "", pinned={"jax": "jax==1"}), "torch==2.13.0\n")
    with pytest.raises(ValueError, match=r"no sdk_version"):
        gradio_version("title: Tilescope\n")
    assert ROOT == TREE


def test_a_space_made_from_the_repository_itself_gets_the_pinned_gradio():
    matter = front_matter(TREE)
    assert f"gradio~={matter['sdk_version']}" in (TREE / "requirements.txt").read_text()
    assert (matter["sdk"], matter["python_version"], matter["app_file"]) == ("gradio", '"3.12"', "app.py")
