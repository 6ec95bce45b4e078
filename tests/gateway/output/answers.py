"""Holds answers of every kind, as parts, for the tests of what shapes them."""

from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning

ANSWERS: dict[str, list[Part]] = {
    "nothing": [],
    "text": [Content("Hel"), Content("lo"), Content("")],
    "thoughts and text": [Reasoning("Well, "), Reasoning("hm."), Content("Hello")],
    "a call": [CallBegins(0, "weather"), CallArguments(0, '{"city": '), CallArguments(0, '"Bonn"}')],
    "a call without arguments": [CallBegins(0, "now"), CallArguments(0, "")],
    "everything": [
        Reasoning("Look it up."),
        Content("I ask."),
        CallBegins(0, "weather"),
        CallArguments(0, '{"city": "Bonn"}'),
        CallBegins(1, "weather"),
        CallArguments(1, '{"city": "Rom"}'),
        Content("Done."),
    ],
}
