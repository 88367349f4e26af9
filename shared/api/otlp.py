"""OTLP/JSON, the format in which OpenTelemetry collectors take traces: the part that Treadle writes.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in lowerCamelCase, ids in hexadecimal digits,
64-bit integers as text, enums as integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeGuard

import msgspec

from shared.runtime.units import Seconds

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
SpanKind = Literal[1, 2, 3]
UNSET: Final = 0
ERROR: Final = 2

Attribute = str | bool | int | float


class AnyValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Value of an attribute: one of these."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | None = None
    double_value: float | None = None

    @property
    def value(self) -> Attribute:
        """The value itself."""
        if self.int_value is not None:
            return int(self.int_value)
        return next(one for one in (self.string_value, self.bool_value, self.double_value, "") if one is not None)


class KeyValue(msgspec.Struct, frozen=True):
    """One attribute."""

    key: str
    value: AnyValue


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """End of a span."""

    code: int = UNSET
    message: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One piece of work."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str
    kind: SpanKind
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: tuple[KeyValue, ...] = ()
    status: Status = Status()

    @property
    def start_s(self) -> Seconds:
        """Unix time of its start."""
        return int(self.start_time_unix_nano) / 1e9

    @property
    def duration_s(self) -> Seconds:
        return (int(self.end_time_unix_nano) - int(self.start_time_unix_nano)) / 1e9

    def attribute(self, key: str) -> Attribute | None:
        """Return the value of an attribute; None: it has none of this name."""
        return next((one.value.value for one in self.attributes if one.key == key), None)


class TraceScope(msgspec.Struct, frozen=True):
    """Writer of the spans."""

    name: str


class ScopeSpans(msgspec.Struct, frozen=True):
    """Spans of one scope."""

    scope: TraceScope
    spans: tuple[Span, ...]


class TraceResource(msgspec.Struct, frozen=True):
    """What did the work."""

    attributes: tuple[KeyValue, ...]


class ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    """Spans of one resource."""

    resource: TraceResource
    scope_spans: tuple[ScopeSpans, ...]


class TraceData(msgspec.Struct, frozen=True, rename="camel"):
    """A whole trace: the body of a collector's `POST /v1/traces`."""

    resource_spans: tuple[ResourceSpans, ...]

    @property
    def spans(self) -> list[Span]:
        """All spans, by their start. Of those that start together, the one that was written first is first."""
        spans = [one for each in self.resource_spans for scope in each.scope_spans for one in scope.spans]
        return sorted(spans, key=lambda one: int(one.start_time_unix_nano))


def attributes(values: Mapping[str, Attribute | None]) -> tuple[KeyValue, ...]:
    """Return attributes, without those that are None or no finite number: JSON has no others."""
    return tuple(KeyValue(key, _any(value)) for key, value in values.items() if _is_known(value))


def nano(unix_s: Seconds) -> str:
    """Return a Unix time in nanoseconds, exact to the microsecond."""
    return str(round(unix_s * 1e6) * 1000)


def _is_known(value: Attribute | None) -> TypeGuard[Attribute]:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _any(value: Attribute) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=str(value))
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)
