"""Where a table's vectors may be kept in bf16."""

import msgspec
import pytest

import sfctr


def test_fp32_is_the_default_and_bf16_is_for_vectors_of_tables_that_are_not_dense():
    assert sfctr.Table("item").dtype == "fp32"
    assert sfctr.Table("item", dtype="bf16").dtype == "bf16"
    with pytest.raises(sfctr.SfctrError, match=r"table 'hour': dtype is \"bf16\" and its vectors are a parameter of"):
        sfctr.Table("hour", dense=True, num_rows=24, dtype="bf16")
    with pytest.raises(sfctr.SfctrError, match=r"table 'first': dtype is \"bf16\" and it has no vectors"):
        sfctr.Table("first", dim=0, linear=sfctr.SGD(), dtype="bf16")


def test_another_dtype_in_a_run_file_is_refused_with_what_there_is():
    with pytest.raises(msgspec.ValidationError, match=r"Invalid enum value 'fp16' - at `\$.dtype`"):
        msgspec.convert({"name": "item", "dtype": "fp16"}, sfctr.Table)
