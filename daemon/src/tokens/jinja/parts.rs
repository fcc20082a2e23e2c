//! Whether a template goes through the parts of a message's content, found as vLLM finds it (0.32, renderers/hf.py,
//! `_detect_content_format`).

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro};

/// What a template has of each.
#[derive(Default)]
pub(super) struct Found<'t, 's> {
    /// Targets and values of `set`.
    pub(super) sets: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
    /// Loops, with the macro that they are in.
    pub(super) loops: Vec<(Option<&'s str>, &'t ForLoop<'s>)>,
    pub(super) macros: Vec<&'t Macro<'s>>,
    /// Calls of functions by name.
    pub(super) calls: Vec<(&'s str, &'t [CallArg<'s>])>,
}

impl<'s> Found<'_, 's> {
    /// `false` too where vLLM's search fails.
    pub(super) fn goes_through_parts(&self) -> bool {
        self.search().unwrap_or(false)
    }

    /// `None`: something other than a plain name stands for messages.
    fn search(&self) -> Option<bool> {
        let mut lists = vec!["messages"];
        let mut next = 0;
        while let Some(list) = lists.get(next).copied() {
            next = next.saturating_add(1);
            for (target, _) in self.sets.iter().filter(|(_, value)| is_of(value, list, None)) {
                let name = name(target)?;
                if !lists.contains(&name) {
                    lists.push(name);
                }
            }
        }
        let over_messages = |each: &&ForLoop<'_>| lists.iter().any(|list| is_of(&each.iter, list, None));
        let loops = || self.loops.iter().map(|(_, each)| *each);
        let messages =
            loops().filter(over_messages).map(|each| name(&each.target)).collect::<Option<Vec<_>>>()?;
        let is_content =
            |value: &Expr<'_>| messages.iter().any(|message| is_of(value, message, Some("content")));
        for (inside, each) in &self.loops {
            let by_name = || match (inside, name(&each.iter)) {
                (Some(inside), Some(name)) => self.is_given(inside, name, is_content),
                (None, name) => name == Some("content"),
                _ => false,
            };
            if is_content(&each.iter) || by_name() {
                return name(&each.target).map(|_| true);
            }
        }
        Some(false)
    }

    /// Whether a call gives a macro such a value by this argument.
    fn is_given(&self, to: &str, argument: &str, is_content: impl Fn(&Expr<'s>) -> bool) -> bool {
        let arguments =
            self.macros.iter().find(|known| known.name == to).map_or(&[][..], |known| &known.args);
        let place = arguments.iter().position(|known| name(known) == Some(argument));
        self.calls.iter().filter(|(called, _)| *called == to).any(|(_, given)| {
            given.iter().enumerate().any(|(i, given)| match given {
                CallArg::Pos(value) => Some(i) == place && is_content(value),
                CallArg::Kwarg(name, value) => place.is_some() && *name == argument && is_content(value),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
            })
        })
    }
}

fn name<'s>(expression: &Expr<'s>) -> Option<&'s str> {
    match expression {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

/// Whether `value` is `of`, or its `key`, or a part or a filtered form of either.
fn is_of(value: &Expr<'_>, of: &str, key: Option<&str>) -> bool {
    match (value, key) {
        (Expr::Filter(filter), _) => filter.expr.as_ref().is_some_and(|value| is_of(value, of, key)),
        (Expr::Test(test), _) => is_of(&test.expr, of, key),
        (Expr::Slice(slice), _) => is_of(&slice.expr, of, key),
        (value, None) => name(value) == Some(of),
        (Expr::GetAttr(lookup), Some(key)) => lookup.name == key && name(&lookup.expr) == Some(of),
        (Expr::GetItem(lookup), Some(key)) => match &lookup.subscript_expr {
            Expr::Const(known) => known.value.as_str() == Some(key) && name(&lookup.expr) == Some(of),
            _ => false,
        },
        _ => false,
    }
}
