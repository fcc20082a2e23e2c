//! Chat templates as Python's Jinja renders them in transformers (utils/chat_template_utils.py): sandboxed, with
//! `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`, `raise_exception` and `strftime_now`.
//!
//! minijinja parses and runs the template. Its operators, lookups, filters, tests and methods differ from Python's in
//! detail, so none of them is used: [`compile`] replaces each by a filter of this module. What is not known to render
//! alike fails, and the prompt then goes by its bounds.
//!
//! Bounds: the steps of a rendering, the text it makes, and the length of any text or list on the way. A template
//! reaches nothing but its context.

mod clock;
mod compile;
mod filters;
mod json;
mod methods;
mod nodes;
mod operators;
mod parts;
mod source;
mod tests;
mod value;

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, Value,
    machinery::{CodeGenerator, Vm, make_string_output},
};
use serde_json::{Map, Value as Json};

/// Most steps of a rendering: some thousand messages.
const MAX_STEPS: u64 = 5_000_000;
/// Longest text of a rendering or of a value in it, bytes.
const MAX_BYTES: usize = 16 << 20;
/// Longest list in a rendering.
const MAX_ITEMS: usize = 1 << 20;
/// Deepest nesting of a value or an expression.
const MAX_DEPTH: usize = 200;
/// Name of the template.
const NAME: &str = "chat";
/// Counts the bytes of a rendering.
const WRITTEN: &str = "written";

/// A template, found to be one that can be rendered as Python's Jinja renders it.
pub struct Template {
    environment: Environment<'static>,
    source: String,
    goes_through_parts: bool,
}

impl Template {
    /// Checks `source`.
    ///
    /// # Errors
    /// It is no template, or has statements that are not rendered as Jinja renders them.
    pub fn new(source: &str) -> Result<Self, Error> {
        let source = source::normalized(source)?;
        let (_, goes_through_parts) = compile::compile(&source)?;
        Ok(Self { environment: environment(), source, goes_through_parts })
    }

    /// Whether it goes through the parts of a message's content itself; otherwise it wants one text.
    #[must_use]
    pub const fn goes_through_parts(&self) -> bool {
        self.goes_through_parts
    }

    /// The text that Jinja makes of the template with `context`.
    ///
    /// # Errors
    /// The template refuses the context, or does what is not rendered as Jinja renders it.
    pub fn render(&self, context: &Map<String, Json>) -> Result<String, Error> {
        context.values().try_for_each(exact)?;
        let mut generator = CodeGenerator::new(NAME, &self.source);
        generator.compile_stmt(&compile::compile(&self.source)?.0);
        let (instructions, blocks) = generator.finish();
        let mut text = String::new();
        Vm::new(&self.environment).eval(
            &instructions,
            Value::from_serialize(context),
            &blocks,
            &mut make_string_output(&mut text),
            AutoEscape::None,
        )?;
        Ok(text)
    }
}

/// Only what this module adds: minijinja's own filters, tests and functions are not there.
fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_debug(false);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_formatter(write);
    operators::add(&mut environment);
    filters::add(&mut environment);
    tests::add(&mut environment);
    environment.add_function("range", minijinja::functions::range);
    environment.add_function("namespace", value::namespace);
    environment.add_function("strftime_now", |format: &str| clock::now(format).ok_or_else(unlike));
    environment.add_function("raise_exception", |_: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "the template refuses the messages"))
    });
    environment
}

/// Writes what an expression shows.
fn write(output: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = value::shown(value)?;
    let before = state.get_temp(WRITTEN).and_then(|written| written.as_usize()).unwrap_or(0);
    let written = before.saturating_add(text.len());
    if written > MAX_BYTES {
        return Err(too_long());
    }
    state.set_temp(WRITTEN, Value::from(written));
    Ok(output.write_str(&text)?)
}

/// Whether Python reads the numbers of `json` as this program does: it keeps integers of any size, which are floats here.
fn exact(json: &Json) -> Result<(), Error> {
    match json {
        Json::Number(number) => match number.as_f64() {
            Some(float)
                if number.is_f64()
                    && (float.abs() >= 2f64.powi(63) || float == 0.0 && float.is_sign_negative()) =>
            {
                Err(unlike())
            }
            _ => Ok(()),
        },
        Json::Array(items) => items.iter().try_for_each(exact),
        Json::Object(fields) => fields.values().try_for_each(exact),
        _ => Ok(()),
    }
}

/// What is not known to be rendered as Python renders it, or what Python refuses as well.
fn unlike() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the template does what is not rendered as Jinja renders it")
}

fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the template makes too long a text or list")
}

#[cfg(test)]
mod rendering {
    use super::*;

    fn rendered(template: &str) -> Result<String, Error> {
        let context = r#"{"s":"Hello World","n":null,"T":true,"i":7,"m":-7,"f":1.5,"l":[1,"a",null],"w":"a\nb\n",
            "d":{"b":[1,{"c":"\u00e9"}],"A":{}},"msgs":[{"role":"user","content":"x"},{"role":"tool"}]}"#;
        Template::new(template)?.render(&serde_json::from_str(context).unwrap())
    }

    /// Expected: what transformers 5.19 with Jinja 3.1.6 makes of them.
    #[test]
    fn templates_are_rendered_as_pythons_jinja_renders_them() {
        for (template, text) in [
            (
                "{{ n }} {{ T }} {{ l }} {{ d }} {{ f }} {{ (1, 2.0) }} {{ 1e16 }} {{ 1e-5 }}",
                "None True [1, 'a', None] {'b': [1, {'c': '\u{e9}'}], 'A': {}} 1.5 (1, 2.0) 1e+16 1e-05",
            ),
            (
                "{{ n is iterable }} {{ s is sequence }} {{ u is iterable }} {{ d is sequence }} {{ T is number }} {{ T is integer }}",
                "False True True True True False",
            ),
            (
                "{{ d | tojson }}|{{ d | tojson(separators=(',', ':'), sort_keys=true) }}|{{ d | tojson(true, 1) }}",
                "{\"b\": [1, {\"c\": \"\u{e9}\"}], \"A\": {}}|{\"A\":{},\"b\":[1,{\"c\":\"\u{e9}\"}]}|\
                 {\n \"b\": [\n  1,\n  {\n   \"c\": \"\\u00e9\"\n  }\n ],\n \"A\": {}\n}",
            ),
            (
                "{% set x = 'a' %}{% for m in l %}{% generation %}{% set x = 'b' %}{{ m }}{% endgeneration %}{{ x }}{% endfor %}",
                "1aaaNonea",
            ),
            ("{% if T %}\r\n a\r\n{% endif %}\r\nb\rc\r\n", " a\nb\nc"),
            (
                "{{ m // 2 }} {{ m % 3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ T + 1 }} {{ 2 ** 70 }} {{ -2 ** 2 }}",
                "-4 2 3.5 2.0 2 1180591620717411303424 4",
            ),
            (
                "{{ s[0] }} {{ s[-1] }} {{ s[::-1] }} {{ l[9] is defined }} {{ s[1:4] }} {{ l[-9:2] }}",
                "H d dlroW olleH False ell [1, 'a']",
            ),
            ("{{ 'yes' if msgs | selectattr('role', 'equalto', 'none') else 'no' }}", "yes"),
            (
                "{{ w | indent(2) }}|{{ w | indent(2, true) }}|{{ s | capitalize }}",
                "a\n  b\n|  a\n  b\n|Hello world",
            ),
            (
                "{{ s.split('o') }} {{ s.split() }} {{ s.find('W') }} {{ s.startswith(('x', 'He')) }}",
                "['Hell', ' W', 'rld'] ['Hello', 'World'] 6 True",
            ),
            (
                "{{ d.get('z') }} {{ d.get('z', 1) }} {{ d.items() | list }}",
                "None 1 [('b', [1, {'c': '\u{e9}'}]), ('A', {})]",
            ),
            (
                "{% set ns = namespace(a=1) %}{% for x in l %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}",
                "4",
            ),
            (
                "{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{{ m(none) }}",
                "[1x][12][Nonex]",
            ),
            (
                "{% for x in l if x %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
                "1/2,2/2",
            ),
            (
                "{{ 1 == 1.0 }} {{ [1] == (1,) }} {{ n == u }} {{ 1 < 2 < 3 }} {{ 'x' in d }}",
                "True False False True False",
            ),
            ("{% set x %}{% set y = 1 %}in{% endset %}{{ x }}{{ y is defined }}", "inFalse"),
            ("{{ i ~ n ~ T }} {{ (d | dictsort)[0] }} {{ 3 and none }}", "7NoneTrue ('A', {}) None"),
            (
                "{{ 'x' if false }}|{{ u | default('d') }}|{{ '' | default('d', true) }}|{{ n | default('d') }}",
                "|d|d|None",
            ),
        ] {
            assert_eq!(rendered(template).unwrap(), text, "{template}");
        }
    }

    #[test]
    fn what_would_be_rendered_otherwise_is_not_rendered() {
        for template in [
            "{{ '%s' % s }}",
            "{{ '{}'.format(s) }}",
            "{{ '%s' | format(s) }}",
            "{% for x in [1] %}{% break %}{% else %}E{% endfor %}",
            "{% for x in l recursive %}{{ x }}{% endfor %}",
            "{% raw %}\n{{ x }}{% endraw %}",
            "{{ d.items }}",
            "{{ d['items'] }}",
            "{{ s.__class__ }}",
            "{{ (s | safe) + '<' }}",
            "{% macro m(a='x') %}{{ a }}{% endmacro %}{{ m(u) }}",
            "{{ '\\/' }}",
            "{% with a = 1, b = a %}{{ b }}{% endwith %}",
            "{{ lipsum is defined }}",
            "{{ l | map('string') }}",
            "{{ '\u{1c5}' | lower }}",
            "{% autoescape true %}{{ '<' }}{% endautoescape %}",
            "{% filter upper %}a{% endfilter %}",
            "{% do l.append(1) %}",
            "{{ [1.5, 2] | sum }}",
            "{{ 'a\u{2028}b'.splitlines() }}",
            "{{ range(3) }}",
            "{{ i is eq -7 }}",
            "{{ strftime_now('%j') }}",
        ] {
            assert!(rendered(template).is_err(), "{template}");
        }
        // Python keeps what is a float here as an integer.
        let context = serde_json::from_str(r#"{"a":[18446744073709551616]}"#).unwrap();
        assert!(Template::new("{{ a }}").unwrap().render(&context).is_err());
    }

    /// Expected: `_detect_content_format` of vLLM 0.32.
    #[test]
    fn loops_over_parts_are_found_as_the_engine_finds_them() {
        let over = |content: &str| {
            format!("{{% for m in messages %}}{{% for c in {content} %}}{{% endfor %}}{{% endfor %}}")
        };
        let given = |argument: &str| {
            format!(
                "{{% macro r(a, parts) %}}{{% for c in parts %}}{{% endfor %}}{{% endmacro %}}\
                 {{% for m in messages %}}{{{{ r(1, parts={argument}) }}}}{{% endfor %}}"
            )
        };
        for (template, expected) in [
            (over("m.content"), true),
            (over("m['content'][1:] | list"), true),
            (over("m.role"), false),
            (over("content"), true),
            (given("m.content"), true),
            (given("m.role"), false),
            (
                format!(
                    "{{% set ns = namespace() %}}{{% set ns.rest = messages[1:] %}}{}",
                    over("m.content")
                ),
                false,
            ),
            (over("m.content").replace("messages", "others"), false),
        ] {
            assert_eq!(Template::new(&template).unwrap().goes_through_parts(), expected, "{template}");
        }
    }

    #[test]
    fn a_template_that_makes_too_much_fails() {
        for template in [
            "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}",
            "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{{ 'x' * 100000000000 }}",
            "{% set x = 'x' * 9000000 %}{{ x }}{{ x }}",
        ] {
            assert!(rendered(template).is_err(), "{template}");
        }
    }
}
