"""Quantities as pydantic types: read by `pearl.units`, written back as text, described to editors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pearl.units import DIMENSIONS, quantity, text


class Quantity:
    """Text with a unit of `dimension`, above 0 (or from 0 with `zero`), as a float in SI units."""

    def __init__(self, dimension: str, *, zero: bool = False) -> None:
        self.dimension, self.zero = dimension, zero

    def read(self, given: object) -> float:
        value = quantity(given, self.dimension)
        if value < 0 or (value == 0 and not self.zero):
            what = DIMENSIONS[self.dimension]
            least = "at least 0" if self.zero else "above 0"
            raise ValueError(f"{what.name} {least}, for example {what.example}")
        return value

    def write(self, value: float) -> str:
        return text(value, self.dimension)

    def json_schema(self) -> dict[str, Any]:
        what = DIMENSIONS[self.dimension]
        symbols = "|".join(what.symbols)
        pattern = rf"^\s*[-+0-9.eE]+\s*[A-Za-zµμ]{{0,2}}({symbols})\s*$"
        return {"type": "string", "pattern": pattern, "examples": [what.example]}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.json_schema()


Bytes = Annotated[float, Quantity("bytes")]
PerSecond = Annotated[float, Quantity("per_s")]
Seconds = Annotated[float, Quantity("s")]
Watts = Annotated[float, Quantity("w")]
