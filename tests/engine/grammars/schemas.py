"""JSON schemas and regexes of the kinds that people ask for.

Some have the shapes of the public JSON Schema test suite: a keyword alone, on values of any type; the others are whole
forms. What has no end of its own, as a free string, ends by the bias that the tests give to quotes and brackets.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
EMAIL: Schema = {"type": "string", "format": "email", "maxLength": 40}


def closed(*required: str, **properties: Schema) -> Schema:
    """An object of these properties and no others; all of them have to be there unless `required` names some."""
    names = list(required) or list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def listed(items: Schema, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(least: int = 0, most: int = 8) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def pattern(regex: str) -> Schema:
    return {"type": "string", "pattern": regex}


def between(least: float, most: float, kind: str = "integer") -> Schema:
    return {"type": kind, "minimum": least, "maximum": most}


def tagged(kind: str, **properties: Schema) -> Schema:
    return closed(kind={"const": kind}, **properties)


TREE: Schema = closed("value", value=INTEGER, children=listed({"$ref": "#/$defs/tree"}, most=2))
EXPRESSION: Schema = {
    "anyOf": [
        between(0, 9),
        closed(
            operator={"enum": ["+", "-", "*"]},
            left={"$ref": "#/$defs/expression"},
            right={"$ref": "#/$defs/expression"},
        ),
    ]
}
FOLDER: Schema = closed(name=text(1), files=listed(text(1)), folders=listed({"$ref": "#/$defs/folder"}, most=2))
POINT = closed(x=between(-100, 100, "number"), y=between(-100, 100, "number"))
PERSON = closed("name", "age", name=text(1, 20), age=between(0, 130), email=EMAIL)
ADDRESS = closed(street=text(1, 20), zip=pattern("^[0-9]{5}$"), country={"enum": ["DE", "FR", "JP", "ÅX"]})

SCHEMAS: dict[str, Schema] = {
    # one type, with its keywords
    "null": NULL,
    "boolean": BOOLEAN,
    "integer": INTEGER,
    "number": NUMBER,
    "string": STRING,
    "array": {"type": "array"},
    "object": {"type": "object"},
    "several types": {"type": ["integer", "null", "string"]},
    "both bounds": between(-12, 345),
    "exclusive bounds of numbers": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "length": text(3, 5),
    "empty string": text(0, 0),
    "pattern": pattern("^[A-Z]{2}[0-9]{4}$"),
    "pattern in the middle": {"type": "string", "pattern": "[0-9]{3}", "maxLength": 12},
    "umlauts": pattern("^[äöüß]{1,4}$"),
    "escapes in a pattern": pattern(r"^\(\d{3}\) \d{3}-\d{4}$"),
    "items": listed(INTEGER, most=5),
    "no items": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [INTEGER, text(), BOOLEAN], "items": False, "minItems": 3},
    "tuple and more": {"type": "array", "prefixItems": [text()], "items": INTEGER, "minItems": 2, "maxItems": 4},
    "lists of lists": listed(listed(between(0, 9)), 1),
    "properties": {"type": "object", "properties": {"a": INTEGER, "b": text()}},
    "required": {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "b"]},
    "closed": closed(a=INTEGER, b=text()),
    "optional": closed("a", a=INTEGER, b=text(), c=BOOLEAN),
    "a map": {"type": "object", "additionalProperties": between(0, 99)},
    "names by a pattern": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,5}$": INTEGER},
        "additionalProperties": False,
    },
    "names of all kinds": closed(**{"a b": NULL, 'quo"te': NULL, "back\\slash": NULL, "漢字": NULL, "": NULL}),
    # values
    "enum": {"enum": ["red", "green", "blue"]},
    "enum of types": {"enum": [1, "1", None, True, 2.5, [1, 2], {"a": "b"}]},
    "enum of texts that begin alike": {"enum": ["a", "ab", "abc", "abcd"]},
    "enum with escapes": {"enum": ['say "hi"', "a\\b", "tab\there", "line\nbreak", "naïve 🎉"]},
    "large enum": {"enum": [f"item-{number * 37 % 1009}" for number in range(300)]},
    "const": {"const": {"exactly": ["this", 1, None]}},
    # unions
    "any of types": {"anyOf": [INTEGER, text(), NULL]},
    "any of objects that begin alike": {"anyOf": [closed(a=INTEGER, b=BOOLEAN), closed(a=INTEGER, c=NULL)]},
    "optional value": closed(name=text(), nickname={"anyOf": [text(), NULL]}),
    "one of tagged": {"oneOf": [tagged("circle", r=between(0, 9)), tagged("square", side=between(0, 9))]},
    "one of references": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {"cat": tagged("cat", lives=between(1, 9)), "dog": tagged("dog", name=text(1))},
    },
    "all of bounds": {"allOf": [INTEGER, {"minimum": 3}, {"maximum": 9}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"type": "object", "properties": {"b": text()}, "required": ["b"]},
        ]
    },
    "union in a list": listed({"anyOf": [between(0, 9), pattern("^[a-z]{2}$"), closed(x=NULL)]}, 2, 5),
    "union beside properties": {
        "type": "object",
        "properties": {"id": between(0, 99)},
        "required": ["id"],
        "anyOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": NULL}, "required": ["b"]}],
    },
    # references
    "reference": {"$ref": "#/$defs/point", "$defs": {"point": POINT}},
    "reference to a property": {
        "type": "object",
        "properties": {"a": between(0, 9), "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "reference with siblings": {"$ref": "#/$defs/n", "maximum": 20, "$defs": {"n": {"type": "integer", "minimum": 10}}},
    # recursion
    "tree": {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    "expression": {"$ref": "#/$defs/expression", "$defs": {"expression": EXPRESSION}},
    "folder": {"$ref": "#/$defs/folder", "$defs": {"folder": FOLDER}},
    "a schema that holds itself": {
        "type": "object",
        "properties": {"name": text(1), "parent": {"$ref": "#"}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "two that hold each other": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed("id", id=between(0, 9), edges=listed({"$ref": "#/$defs/edge"}, most=2)),
            "edge": closed(weight=between(0, 9), to={"$ref": "#/$defs/node"}),
        },
    },
    # formats
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": EMAIL,
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    # nothing said, or little
    "anything": {},
    "annotations": {
        "title": "T",
        "description": "D",
        "default": 3,
        "examples": [1],
        "type": "integer",
        "$comment": "C",
    },
    "a keyword of another type": {"type": "integer", "maxLength": 3, "pattern": "^x$"},
    # whole forms
    "person": PERSON,
    "address": closed(person=PERSON, address=ADDRESS),
    "extraction": closed(
        sentiment={"enum": ["positive", "neutral", "negative"]},
        confidence=between(0, 1, "number"),
        topics=listed({"enum": ["sport", "politics", "science", "art"]}, 1, 4),
        quotes=listed(closed(text=text(1, 20), page={"anyOf": [between(1, 999), NULL]})),
    ),
    "deep": closed(a=closed(b=closed(c=closed(d=closed(e=closed(f=closed(g=listed(closed(h=BOOLEAN), 1)))))))),
    "wide": closed(**{f"field_{number}": between(0, 9) for number in range(40)}),
    "screen": {
        "$ref": "#/$defs/element",
        "$defs": {
            "element": closed(
                type={"enum": ["div", "button", "field"]},
                label=text(0, 10),
                children=listed({"$ref": "#/$defs/element"}, most=2),
            )
        },
    },
}

REGEXES: list[str] = [
    r"[a-z]{3,8}",
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe)",
    r"[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10}){1,2}",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"#[0-9a-fA-F]{6}",
    r"(0|[1-9]\d{0,5})",
    r"-?\d{1,4}(\.\d{1,3})?([eE][+-]?\d{1,2})?",
    r"[\w.]{1,10}@[a-z]{1,8}\.(com|org|net)",
    r"https?://[a-z]{1,10}\.[a-z]{2,3}(/[a-z0-9]{1,5}){0,3}",
    r"\+[1-9]\d{6,14}",
    r"([01]?[0-9]|2[0-3]):[0-5][0-9]",
    r"(a|b)*abb",
    r"(ab){2,5}c?",
    r"(漢字|かな){1,3}",
    "[\u03b1-\u03c9]{1,5}",
    r"🎉{1,3}",
    r"\w{1,5}\s\w{1,5}",
    r"(?i:yes|no)",
    r"[.]{3}|[!?]{1,3}",
    r"\\[nrt]{1,2}",
    r"line\nline\n",
    r"[a-z]{1,3}=[0-9]{1,3}(&[a-z]{1,3}=[0-9]{1,3}){0,3}",
    r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{1,3})",
    r"The answer is \d{1,3}\.",
]
