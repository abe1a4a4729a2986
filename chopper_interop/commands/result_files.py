"""Results of analyses for programs: JSON with its schema, and CSV."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chopper_interop import registry
from chopper_interop.errors import SchemaError
from chopper_interop.result import Result
from chopper_interop.schemas import results

_SUMMARY = "summary.json"


def to_json(all_results: Iterable[Result], *, ascii_only: bool = False) -> str:
    """Encode all results as one JSON object, which `schema` describes.

    Parameters
    ----------
    all_results
        Results of the analyses.
    ascii_only
        True to escape all other characters.

    Raises
    ------
    SchemaError
        A result holds a value that JSON lacks, such as NaN.
    """
    return _encode_json(
        {result.analysis: result.to_dict() for result in all_results}, ascii_only=ascii_only
    )


def _encode_json(parts: dict[str, Any], *, ascii_only: bool = False) -> str:
    try:
        return json.dumps(parts, indent=1, allow_nan=False, ensure_ascii=ascii_only)
    except (ValueError, TypeError) as error:
        if len(parts) > 1:  # one alone says whose it is
            for name, part in parts.items():
                _encode_json({name: part})
        raise SchemaError(
            f"the result of {' or '.join(parts)} cannot be written as JSON: {error}"
        ) from error


def csv_paths(all_results: Iterable[Result], folder: str | Path) -> list[Path]:
    """List the files that `write_csv` writes."""
    names = [f"{result.analysis}.csv" for result in all_results]
    return [Path(folder) / name for name in (*names, _SUMMARY)]


def write_csv(all_results: list[Result], folder: Path) -> None:
    """Write the rows of each result as a CSV file, and all summaries and notes as a JSON file."""
    from chopper_interop.io import outputs

    names = {path.name for path in csv_paths(all_results, folder)} | _earlier_tables(folder)
    facts = {r.analysis: r.to_dict() for r in all_results}
    for result_facts in facts.values():
        del result_facts["rows"]
    summaries = _encode_json(facts)
    with outputs.folder(
        folder, owns=lambda file: file.name in names and _is_written_here(file)
    ) as target:
        for result in all_results:
            path = target / f"{result.analysis}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(result.rows.column_names)
                writer.writerows(row.values() for row in result.rows.to_pylist())
        (target / _SUMMARY).write_text(summaries, encoding="utf-8")


def _earlier_tables(folder: Path) -> set[str]:
    """Names of the tables that the summaries of an earlier run in a folder are of."""
    try:
        summaries = json.loads((folder / _SUMMARY).read_bytes())
    except (OSError, ValueError, RecursionError):
        return set()
    if not isinstance(summaries, dict):
        return set()
    return {f"{name}.csv" for name in registry.working_analyses().keys() & summaries.keys()}


def _is_written_here(path: Path) -> bool:
    """True if `write_csv` wrote this file, by its first line."""
    if path.name == _SUMMARY or not path.is_file():
        return path.is_file()
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    return set(header) <= results.columns(path.stem).keys()


def schema_json(*, ascii_only: bool = False) -> str:
    """Encode the JSON schema of the output of ``--json``."""
    return json.dumps(schema(), indent=1, ensure_ascii=ascii_only)


def schema() -> dict[str, Any]:
    """Make the JSON schema of the output of `to_json`, with all columns that are documented."""
    parts = {
        name: {
            "allOf": [{"$ref": "#/$defs/result"}],
            "description": first_line(function),
            "properties": {"rows": {"items": {"properties": _columns(name)}}},
        }
        for name, function in registry.working_analyses().items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Results of chopper-analyze --json",
        "description": "Null stands for unknown values. Times are whole nanoseconds, in names that "
        "end in _ns; shares go from 0 to 1. x-unit is the unit of a column.",
        "type": "object",
        "properties": parts,
        "additionalProperties": {"$ref": "#/$defs/result"},
        "$defs": {
            "result": {
                "type": "object",
                "required": ["summary", "rows", "notes", "conventions"],
                "properties": {
                    "summary": {"type": "object", "description": "Figures of the job."},
                    "notes": {
                        "type": "object",
                        "description": "Remarks on this result: its window, and what was left "
                        "out, is unknown or was assumed; 'no rows' says why there are none.",
                        "additionalProperties": {"type": "string"},
                    },
                    "conventions": {
                        "type": "object",
                        "description": "Definitions of the figures, the same for any input.",
                        "additionalProperties": {"type": "string"},
                    },
                    "rows": {"type": "array", "items": {"type": "object"}},
                },
            }
        },
    }


def _columns(analysis: str) -> dict[str, Any]:
    units = {name: results.unit(name) for name in results.columns(analysis)}
    return {
        name: {"description": text} | ({"x-unit": units[name]} if units[name] else {})
        for name, text in results.columns(analysis).items()
    }


def first_line(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
