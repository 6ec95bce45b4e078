"""A hundred JSON schemas and fifty regexes, of the kinds that people ask for.

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
LINKED: Schema = closed(value=text(), next={"anyOf": [{"$ref": "#/$defs/linked"}, NULL]})
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
    "minimum": {"type": "integer", "minimum": 17},
    "maximum": {"type": "integer", "maximum": -3},
    "both bounds": between(-12, 345),
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "bounds of numbers": between(-1.25, 3.75, "number"),
    "exclusive bounds of numbers": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "a number above": {"type": "number", "minimum": 1.5},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "halves": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 50},
    "length": text(3, 5),
    "long": text(40, 60),
    "exact length": text(4, 4),
    "empty string": text(0, 0),
    "at least": {"type": "string", "minLength": 6},
    "pattern": pattern("^[A-Z]{2}[0-9]{4}$"),
    "pattern in the middle": {"type": "string", "pattern": "[0-9]{3}", "maxLength": 12},
    "alternatives": pattern("^(cat|dog|bird)s?$"),
    "umlauts": pattern("^[äöüß]{1,4}$"),
    "escapes in a pattern": pattern(r"^\(\d{3}\) \d{3}-\d{4}$"),
    "quotes in a pattern": pattern('^"[a-z]"$'),
    "items": listed(INTEGER, most=5),
    "least items": listed(BOOLEAN, 4, 6),
    "exact items": listed(NULL, 2, 2),
    "no items": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [INTEGER, text(), BOOLEAN], "items": False, "minItems": 3},
    "tuple and more": {"type": "array", "prefixItems": [text()], "items": INTEGER, "minItems": 2, "maxItems": 4},
    "lists of lists": listed(listed(between(0, 9)), 1),
    "properties": {"type": "object", "properties": {"a": INTEGER, "b": text()}},
    "required": {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "b"]},
    "closed": closed(a=INTEGER, b=text()),
    "optional": closed("a", a=INTEGER, b=text(), c=BOOLEAN),
    "no properties": {"type": "object", "additionalProperties": False},
    "a map": {"type": "object", "additionalProperties": between(0, 99)},
    "a map of lists": {"type": "object", "additionalProperties": listed(text())},
    "names by a pattern": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,5}$": INTEGER},
        "additionalProperties": False,
    },
    "least properties": {"type": "object", "additionalProperties": BOOLEAN, "minProperties": 1},
    "names of all kinds": closed(**{"a b": NULL, 'quo"te': NULL, "back\\slash": NULL, "漢字": NULL, "": NULL}),
    # values
    "enum": {"enum": ["red", "green", "blue"]},
    "enum of types": {"enum": [1, "1", None, True, 2.5, [1, 2], {"a": "b"}]},
    "enum of texts that begin alike": {"enum": ["a", "ab", "abc", "abcd"]},
    "enum with escapes": {"enum": ['say "hi"', "a\\b", "tab\there", "line\nbreak", "naïve 🎉"]},
    "large enum": {"enum": [f"item-{number * 37 % 1009}" for number in range(300)]},
    "const": {"const": {"exactly": ["this", 1, None]}},
    "const text": {"const": "The quick brown fox jumps over the lazy dog."},
    # unions
    "any of types": {"anyOf": [INTEGER, text(), NULL]},
    "any of objects": {"anyOf": [closed(a=INTEGER), closed(b=text())]},
    "any of objects that begin alike": {"anyOf": [closed(a=INTEGER, b=BOOLEAN), closed(a=INTEGER, c=NULL)]},
    "optional value": closed(name=text(), nickname={"anyOf": [text(), NULL]}),
    "one of tagged": {"oneOf": [tagged("circle", r=between(0, 9)), tagged("square", side=between(0, 9))]},
    "one of references": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {"cat": tagged("cat", lives=between(1, 9)), "dog": tagged("dog", name=text(1))},
    },
    "one of types": {"oneOf": [INTEGER, text(), listed(INTEGER)]},
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
    "reference twice": closed(**{"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}})
    | {"$defs": {"point": POINT}},
    "definitions": {"$ref": "#/definitions/person", "definitions": {"person": PERSON}},
    "reference to a property": {
        "type": "object",
        "properties": {"a": between(0, 9), "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "chain of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": text(2, 3)},
    },
    "escaped reference": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": between(5, 7)}},
    "reference with siblings": {"$ref": "#/$defs/n", "maximum": 20, "$defs": {"n": {"type": "integer", "minimum": 10}}},
    # recursion
    "tree": {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    "linked list": {"$ref": "#/$defs/linked", "$defs": {"linked": LINKED}},
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
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": EMAIL,
    "ipv4": {"type": "string", "format": "ipv4"},
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
    "anything in a list": {"type": "array", "items": {}, "maxItems": 2},
    "a keyword of another type": {"type": "integer", "maxLength": 3, "pattern": "^x$"},
    # whole forms
    "person": PERSON,
    "people": closed(people=listed(PERSON, 1, 2)),
    "address": closed(person=PERSON, address=ADDRESS),
    "weather call": closed(
        name={"const": "get_weather"},
        arguments=closed("city", city=text(1, 12), unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "steps of a solution": closed(steps=listed(closed(explanation=text(1, 30), output=text(1, 10)), 1), answer=text(1)),
    "calendar": closed(
        title=text(1, 20), date=pattern("^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"), attendees=listed(text(1, 10), 1)
    ),
    "extraction": closed(
        sentiment={"enum": ["positive", "neutral", "negative"]},
        confidence=between(0, 1, "number"),
        topics=listed({"enum": ["sport", "politics", "science", "art"]}, 1, 4),
        quotes=listed(closed(text=text(1, 20), page={"anyOf": [between(1, 999), NULL]})),
    ),
    "table": closed(columns=listed(text(1, 6), 2, 2), rows=listed(listed(between(0, 999), 2, 2), 1)),
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
    "query": closed(
        table={"enum": ["orders", "customers"]},
        columns=listed({"enum": ["id", "status", "price"]}, 1),
        conditions=listed(
            closed(
                column={"enum": ["id", "price"]},
                operator={"enum": ["=", ">", "<", "<=", ">=", "!="]},
                value={"anyOf": [text(), between(0, 9999), closed(column_name={"enum": ["id"]})]},
            )
        ),
        order={"enum": ["asc", "desc"]},
    ),
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
    r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}",
    r"\+[1-9]\d{6,14}",
    r"[01]{8}",
    r"([01]?[0-9]|2[0-3]):[0-5][0-9]",
    r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day",
    r"[ACGT]{10,20}",
    r"v\d{1,2}\.\d{1,2}\.\d{1,2}(-(alpha|beta|rc)\d?)?",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"<b>[^<>]{0,12}</b>",
    r'"[^"]{0,10}"',
    r"\{[a-z]{1,4}\}",
    r"[^\n]{5,15}",
    r"(a|b)*abb",
    r"(ab){2,5}c?",
    r"a?b?c?d?e",
    r"x{7}",
    r"[äöüÄÖÜß]{2,6}",
    r"(漢字|かな){1,3}",
    "[\u03b1-\u03c9]{1,5}",
    r"🎉{1,3}",
    r"\$\d{1,3}(,\d{3}){0,2}\.\d{2}",
    r"[A-Z]{2}\d{2}( [A-Z0-9]{4}){3,5}",
    r"(?:GET|POST|PUT) /[a-z]{1,6} HTTP/1\.[01]",
    r"\w{1,5}\s\w{1,5}",
    r"[a-z]{1,5}(?:,[a-z]{1,5}){0,4}",
    r"(?i:yes|no)",
    r"[.]{3}|[!?]{1,3}",
    r"[-+*/]{1,3}",
    r"[\[\](){}]{2,6}",
    r"\\[nrt]{1,2}",
    r"a/b/c(/d){0,3}",
    r"line\nline\n",
    r"(one|two|three)( (one|two|three)){3}",
    r"(\d)(\d)(\d)",
    r"((a|b)(c|d)){2,4}",
    r"[a-z]{1,3}=[0-9]{1,3}(&[a-z]{1,3}=[0-9]{1,3}){0,3}",
    r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{1,3})",
    r"[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?[+#]?",
    r"(red|green|blue)(,(red|green|blue)){0,2}\.",
    r"The answer is \d{1,3}\.",
]

assert len(SCHEMAS) >= 100 and len(REGEXES) == 50
