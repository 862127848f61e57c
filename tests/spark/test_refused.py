"""A Spark before 4.2: one sentence that names the version, by ``register`` and by Spark's own look."""

from __future__ import annotations

import subprocess
import sys

import pyspark
import pytest
from pyspark.sql.types import StructType

from pyspark_tiered import refused_source
from tiered.errors import ConfigError
from tiered.spark import lacking

OLD = ModuleNotFoundError("No module named 'pyspark.sql.streaming.datasource'", name="pyspark.sql.streaming.datasource")


def test_an_old_pyspark_is_named_with_its_version() -> None:
    error = lacking("the Spark source", OLD)
    assert f"needs Spark 4.2 or later, and pyspark {pyspark.__version__} is installed" in error.message


def test_a_missing_module_is_named() -> None:
    error = lacking("the Spark source", ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.lib"))
    assert error.message == "the Spark source needs pyarrow, which is not installed"


@pytest.mark.parametrize("call", ["schema", "reader", "writer", "streamReader", "streamWriter"])
def test_each_call_of_the_source_says_so(call: str) -> None:
    source = refused_source(lacking("the Spark source", OLD))
    arguments = () if call == "schema" else (StructType(), False) if "riter" in call else (StructType(),)
    assert source.name() == "tiered"
    with pytest.raises(ConfigError, match=r"needs Spark 4\.2 or later"):
        getattr(source({}), call)(*arguments)


def test_spark_finds_the_source_that_refuses() -> None:
    program = (
        "import sys, pyspark.sql.datasource; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "from pyspark_tiered import DefaultSource\n"
        "try: DefaultSource({}).schema()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs Spark 4.2 or later" in done.stdout
