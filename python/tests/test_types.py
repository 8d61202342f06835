"""The types of answers say what the description of the API says."""

import json
import os
import unittest

from tandem import _types

DESCRIPTION = os.path.join(os.path.dirname(__file__), "../../docs/openapi.json")


def fields(schemas, name):
    """The fields of a schema, with those that it takes over from others."""
    found = set()
    schema = schemas[name]
    for part in schema.get("allOf", [schema]):
        if "$ref" in part:
            found |= fields(schemas, part["$ref"].rpartition("/")[2])
        found |= set(part.get("properties", {}))
    return found


@unittest.skipUnless(os.path.exists(DESCRIPTION), "docs/openapi.json is not here")
class Fields(unittest.TestCase):
    def setUp(self):
        with open(DESCRIPTION) as file:
            self.schemas = json.load(file)["components"]["schemas"]

    def test_answers(self):
        for name in [
            "ArrayTask",
            "LatencyInfo",
            "JobLine",
            "JobPrivate",
            "JobInfo",
            "DeviceInfo",
            "DeviceReason",
            "Explanation",
            "DaemonInfo",
            "Param",
            "ServiceRequest",
        ]:
            declared = set(getattr(_types, name).__annotations__)
            self.assertEqual(declared, fields(self.schemas, name), name)

    def test_options(self):
        declared = {name.rstrip("_") for name in _types.JobOptions.__annotations__}
        # These are parameters of `submit` by themselves.
        declared |= {"command", "array", "params"}
        self.assertEqual(declared, fields(self.schemas, "JobRequest"))

    def test_states(self):
        from tandem import _api

        unfinished = {"pending", "running", "paused", "held", "completing"}
        states = set(self.schemas["JobState"]["enum"])
        self.assertEqual(_api.FINAL_STATES, states - unfinished)


if __name__ == "__main__":
    unittest.main()
