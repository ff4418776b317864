"""Quantities as pydantic types: `pearl.spec.units` reads and writes them; editors get a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pearl.spec.units import DIMENSIONS, format_quantity, parse_quantity


class Si(float):
    """A number in SI units that has been read already, so that it needs no unit."""


class Quantity:
    """Text with a unit of `dimension`, above 0 (or from 0 with `zero`), as a float in SI units."""

    def __init__(self, dimension: str, *, zero: bool = False) -> None:
        self.dimension, self.zero = dimension, zero

    def read(self, given: object) -> float:
        """Read a quantity with its unit.

        Raises:
            ValueError: the value is no such quantity; the text names the unit and an example.
        """
        if isinstance(given, Si):
            return given
        value = parse_quantity(given, self.dimension)
        if value < 0 or (value == 0 and not self.zero):
            what = DIMENSIONS[self.dimension]
            least = "at least 0" if self.zero else "above 0"
            raise ValueError(f"{what.name} {least}, for example {what.example}")
        return Si(value)

    def write(self, value: float) -> str:
        return format_quantity(value, self.dimension)

    def json_schema(self) -> dict[str, Any]:
        what = DIMENSIONS[self.dimension]
        symbols = "|".join(what.symbols)
        pattern = rf"^\s*[-+0-9.eE]+\s*[A-Za-zµμ]{{0,2}}({symbols})\s*$"
        return {"type": "string", "pattern": pattern, "examples": [what.example]}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.json_schema()


@dataclass(frozen=True)
class Sourced:
    """A number in SI units and its source; None if only the entry names a source.

    value: in SI units.
    source: in words.
    """

    value: float
    source: str | None = None


class Number:
    """`{value: 16 GB/s, source: …}`, or the value alone if the entry has a `source`.

    dimension: None for a count, which has no unit.
    """

    def __init__(self, dimension: str | None, *, zero: bool = False, whole: bool = False) -> None:
        self.quantity = Quantity(dimension, zero=zero) if dimension else None
        self.whole = whole

    def read(self, given: object) -> Sourced:
        """Read a number of a platform file with its source.

        Raises:
            ValueError: the value is neither a number nor a mapping of value and source.
        """
        if isinstance(given, Sourced):
            return given
        if not isinstance(given, Mapping):
            return Sourced(self._value(given))
        extra = [key for key in given if key not in ("value", "source")]
        if extra or "value" not in given:
            raise ValueError("a mapping with the keys value and source, nothing else")
        source = given.get("source")
        if source is not None and not (isinstance(source, str) and source.strip()):
            raise ValueError("a source in words (datasheet, measurement, or assumed)")
        return Sourced(self._value(given["value"]), source)

    def _value(self, given: object) -> float:
        if self.quantity:
            return self.quantity.read(given)
        kinds = (int,) if self.whole else (int, float)
        if isinstance(given, bool) or not isinstance(given, kinds) or not 0 < given < 1e300:
            raise ValueError(f"a {'whole ' if self.whole else ''}number above 0, without unit")
        return float(given)

    def write(self, number: Sourced) -> Any:
        value: Any = number.value
        if self.quantity:
            value = self.quantity.write(value)
        elif number.value.is_integer():
            value = int(number.value)
        return value if number.source is None else {"value": value, "source": number.source}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kind = {"type": "integer" if self.whole else "number", "exclusiveMinimum": 0}
        value = self.quantity.json_schema() if self.quantity else kind
        both = {
            "type": "object",
            "properties": {"value": value, "source": {"type": "string"}},
            "required": ["value"],
            "additionalProperties": False,
        }
        return {"anyOf": [value, both]}


class Figure(Number):
    """A number of any dimension; the figure's name tells `read_platform` which."""

    def __init__(self) -> None:
        super().__init__(None)

    def read(self, given: object) -> Any:
        return given

    def write(self, number: Any) -> Any:
        return number

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        value = {"type": ["number", "string"]}
        source = {"type": "string"}
        both = {"type": "object", "properties": {"value": value, "source": source}}
        return {"anyOf": [value, both]}


Bytes = Annotated[float, Quantity("bytes")]
PerSecond = Annotated[float, Quantity("per_s")]
Seconds = Annotated[float, Quantity("s")]
Watts = Annotated[float, Quantity("w")]
