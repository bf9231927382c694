"""What OpenVINO's .xml tells: inputs and outputs, and that ours does not run what is between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import onernn
from onernn.ir.errors import ModelFormatError, OnernnError, UnsupportedError

# As OpenVINO 2026.4 writes a layer, and as 2022 did: names of outputs stand at their makers alone.
NEW = """<?xml version="1.0"?>
<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter"><data shape="?,2..5,3" element_type="f32" />
<output><port id="0" precision="FP32" names="words\\,in,other"><dim>-1</dim></port></output></layer>
<layer id="1" name="lens" type="Parameter"><data shape="?" element_type="i32" />
<output><port id="0" precision="I32"><dim>-1</dim></port></output></layer>
<layer id="2" name="net/Tanh" type="Tanh"><input><port id="0" /></input>
<output><port id="1" names="made"><dim>3</dim></port></output></layer>
<layer id="3" name="made/sink_port_0" type="Result" output_names="Y,alias" /></layers>
<edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0" />
<edge from-layer="2" from-port="1" to-layer="3" to-port="0" /></edges></net>"""
OLD = NEW.replace(' output_names="Y,alias"', "")


def test_inputs_and_outputs_have_their_names_types_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(NEW)
    model = onernn.load(tmp_path / "m.xml")
    assert [(v.name, v.dtype, v.shape) for v in model.inputs] == [
        ("words,in", "float32", (None, None, 3)),
        ("lens", "int32", (None,)),
    ]
    assert [value.name for value in model.outputs] == ["Y"]
    (tmp_path / "m.xml").write_text(OLD)
    assert [value.name for value in onernn.load(tmp_path / "m.xml").outputs] == ["made"]


def test_it_is_no_model_to_run_here_and_the_message_tells_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(NEW)
    with pytest.raises(UnsupportedError, match=r"ONNX file.*--against openvino:m\.xml"):
        onernn.Session(tmp_path / "m.xml")


BOMB = '<!DOCTYPE n [<!ENTITY a "aaaaaaaaaa">{}]><net><layers>&b9;</layers></net>'.format(
    "".join(f'<!ENTITY b{k} "{(f"&b{k - 1};" if k else "&a;") * 10}">' for k in range(10))
)


@pytest.mark.parametrize(
    "text",
    ["", "<", "<nets/>", "<net/>", "\0", "<net><layers></net>", BOMB],
    ids=["empty", "cut", "other", "bare", "binary", "crossed", "bomb"],
)
def test_a_file_that_is_none_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(text)
    with pytest.raises(ModelFormatError, match=r"m\.xml"):
        onernn.load(tmp_path / "m.xml")


def test_a_size_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(NEW.replace("2..5,3", "9" * 5000))
    with pytest.raises(ModelFormatError, match=r"m\.xml: .*input .*impossible shape"):
        onernn.load(tmp_path / "m.xml")


def test_damaged_files_give_errors_of_ours_and_no_others(tmp_path: Path) -> None:
    dice, path = random.Random(0), tmp_path / "m.xml"
    for _ in range(300):
        data = bytearray(dice.choice((NEW, OLD)).encode())
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            data[at : at + dice.choice((0, 1, 8))] = dice.randbytes(dice.choice((0, 1, 3)))
        path.write_bytes(data)
        try:
            onernn.load(path)
        except OnernnError as error:
            assert "m.xml" in str(error)
