//! A template's syntax tree, with each operator, lookup and method call replaced by the filter of that name.

use std::collections::BTreeMap;

use minijinja::{
    Error,
    machinery::{
        ast::{
            BinOpKind, Call, CallArg, Compare, CompareOpKind, Const, Expr, Filter, ForLoop, IfCond, IfExpr,
            List, Macro, Map, Set, SetBlock, Spanned, Stmt, Template, Test, UnaryOpKind, WithBlock,
        },
        parse,
    },
};

use super::{
    MAX_DEPTH, NAME,
    nodes::{binary, comparison, constant, emit, filtered, not, operator, variable},
    parts::Found,
    source::{WHITESPACE, between, check_tokens},
    too_long, unlike,
};

/// Names that Jinja defines. Elsewhere than in a call or after `is defined` they show Python's own objects.
const GLOBALS: [&str; 13] = [
    "range",
    "namespace",
    "strftime_now",
    "raise_exception",
    "dict",
    "lipsum",
    "cycler",
    "joiner",
    "self",
    "super",
    "varargs",
    "kwargs",
    "caller",
];
/// Of those, the ones that can be called here.
const FUNCTIONS: [&str; 4] = ["range", "namespace", "strftime_now", "raise_exception"];

/// The tree of a normalized source, and whether it goes through the parts of a message's content.
pub(super) fn compile(source: &str) -> Result<(Stmt<'_>, bool), Error> {
    check_tokens(source)?;
    let Stmt::Template(template) = parse(source, NAME, Default::default(), WHITESPACE)? else {
        return Err(unlike());
    };
    let mut compiler = Compiler {
        source,
        macros: BTreeMap::new(),
        inside: None,
        found: Found::default(),
        depth: 0,
        breaks: Breaks::Allowed,
    };
    for statement in &template.children {
        if let Stmt::Macro(named) = statement {
            let known = compiler.macros.insert(named.name, !named.defaults.is_empty());
            if known.is_some() || GLOBALS.contains(&named.name) {
                return Err(unlike());
            }
        }
    }
    let children = template.children.iter().map(|statement| match statement {
        Stmt::Macro(named) => compiler.named(named),
        other => compiler.statement(other),
    });
    let children = children.collect::<Result<_, _>>()?;
    let tree = Stmt::Template(Spanned::new(Template { children }, template.span()));
    Ok((tree, compiler.found.goes_through_parts()))
}

/// Whether `break` and `continue` may stand here.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Allowed,
    /// minijinja leaves the scope open, or Jinja goes on to the loop's `else`.
    Refused,
}

struct Compiler<'t, 's> {
    source: &'s str,
    /// The template's macros, and whether they have arguments with defaults.
    macros: BTreeMap<&'s str, bool>,
    /// The macro that is compiled.
    inside: Option<&'s str>,
    found: Found<'t, 's>,
    depth: usize,
    breaks: Breaks,
}

impl<'t, 's> Compiler<'t, 's> {
    fn statements(
        &mut self,
        statements: &'t [Stmt<'s>],
        breaks: Option<Breaks>,
    ) -> Result<Vec<Stmt<'s>>, Error> {
        let outer = self.breaks;
        self.breaks = breaks.unwrap_or(outer);
        let compiled = statements.iter().map(|statement| self.statement(statement)).collect();
        self.breaks = outer;
        compiled
    }

    fn statement(&mut self, statement: &'t Stmt<'s>) -> Result<Stmt<'s>, Error> {
        Ok(match statement {
            Stmt::EmitRaw(raw) => emit(constant(raw.raw, raw.span()), raw.span()),
            Stmt::EmitExpr(shown) => emit(self.expression(&shown.expr)?, shown.span()),
            Stmt::IfCond(branch) => Stmt::IfCond(Spanned::new(
                IfCond {
                    expr: self.expression(&branch.expr)?,
                    true_body: self.statements(&branch.true_body, None)?,
                    false_body: self.statements(&branch.false_body, None)?,
                },
                branch.span(),
            )),
            Stmt::ForLoop(each) => self.each(each)?,
            Stmt::Set(set) => self.set(set)?,
            Stmt::SetBlock(block) if block.filter.is_none() => {
                let body = WithBlock {
                    assignments: Vec::new(),
                    body: self.statements(&block.body, Some(Breaks::Refused))?,
                };
                let body = vec![Stmt::WithBlock(Spanned::new(body, block.span()))];
                let target = self.target(&block.target)?;
                Stmt::SetBlock(Spanned::new(SetBlock { target, filter: None, body }, block.span()))
            }
            // Of several, Jinja reads the values in the outer scope, minijinja in the inner one.
            Stmt::WithBlock(with) if with.assignments.len() < 2 => {
                let assignments = with.assignments.iter();
                let assignments =
                    assignments.map(|(to, from)| Ok((self.target(to)?, self.expression(from)?)));
                let assignments = assignments.collect::<Result<_, Error>>()?;
                let body = self.statements(&with.body, Some(Breaks::Refused))?;
                Stmt::WithBlock(Spanned::new(WithBlock { assignments, body }, with.span()))
            }
            Stmt::Break(at) if self.breaks == Breaks::Allowed => {
                Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, at.span()))
            }
            Stmt::Continue(at) if self.breaks == Breaks::Allowed => {
                Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, at.span()))
            }
            _ => return Err(unlike()),
        })
    }

    fn each(&mut self, each: &'t Spanned<ForLoop<'s>>) -> Result<Stmt<'s>, Error> {
        if each.recursive {
            return Err(unlike());
        }
        self.found.loops.push((self.inside, each));
        let breaks = if each.else_body.is_empty() { Breaks::Allowed } else { Breaks::Refused };
        let compiled = ForLoop {
            target: self.target(&each.target)?,
            iter: filtered("iter", self.expression(&each.iter)?, Vec::new(), each.span()),
            filter_expr: each.filter_expr.as_ref().map(|filter| self.expression(filter)).transpose()?,
            recursive: false,
            body: self.statements(&each.body, Some(breaks))?,
            else_body: self.statements(&each.else_body, None)?,
        };
        Ok(Stmt::ForLoop(Spanned::new(compiled, each.span())))
    }

    fn set(&mut self, set: &'t Spanned<Set<'s>>) -> Result<Stmt<'s>, Error> {
        self.found.sets.push((&set.target, &set.expr));
        let value = self.expression(&set.expr)?;
        if let Expr::GetAttr(attribute) = &set.target {
            let namespace = self.expression(&attribute.expr)?;
            let arguments = vec![constant(attribute.name, set.span()), value];
            return Ok(emit(filtered("set", namespace, arguments, set.span()), set.span()));
        }
        Ok(Stmt::Set(Spanned::new(Set { target: self.target(&set.target)?, expr: value }, set.span())))
    }

    /// A name, or several, that get a value.
    fn target(&self, target: &Expr<'s>) -> Result<Expr<'s>, Error> {
        match target {
            Expr::Var(name) if !GLOBALS.contains(&name.id) && !self.macros.contains_key(name.id) => {
                Ok(variable(name.id, name.span()))
            }
            Expr::List(names) => {
                let items = names.items.iter().map(|name| self.target(name)).collect::<Result<_, _>>()?;
                Ok(Expr::List(Spanned::new(List { items }, names.span())))
            }
            _ => Err(unlike()),
        }
    }

    /// A macro of the template.
    fn named(&mut self, named: &'t Spanned<Macro<'s>>) -> Result<Stmt<'s>, Error> {
        self.found.macros.push(named);
        self.inside = Some(named.name);
        let compiled = Macro {
            name: named.name,
            args: named.args.iter().map(|name| self.target(name)).collect::<Result<_, _>>()?,
            defaults: self.expressions(&named.defaults)?,
            body: self.statements(&named.body, Some(Breaks::Allowed))?,
        };
        self.inside = None;
        Ok(Stmt::Macro(Spanned::new(compiled, named.span())))
    }

    fn expressions(&mut self, expressions: &'t [Expr<'s>]) -> Result<Vec<Expr<'s>>, Error> {
        expressions.iter().map(|expression| self.expression(expression)).collect()
    }

    fn expression(&mut self, expression: &'t Expr<'s>) -> Result<Expr<'s>, Error> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > MAX_DEPTH {
            return Err(too_long());
        }
        let compiled = self.part(expression);
        self.depth = self.depth.saturating_sub(1);
        compiled
    }

    fn part(&mut self, expression: &'t Expr<'s>) -> Result<Expr<'s>, Error> {
        let span = expression.span();
        Ok(match expression {
            Expr::Var(name) if GLOBALS.contains(&name.id) || self.macros.contains_key(name.id) => {
                return Err(unlike());
            }
            Expr::Var(name) => variable(name.id, span),
            Expr::Const(value) => Expr::Const(Spanned::new(Const { value: value.value.clone() }, span)),
            Expr::Slice(slice) => {
                let bounds = [&slice.start, &slice.stop, &slice.step].into_iter();
                let bounds = bounds.map(|bound| match bound {
                    Some(bound) => self.expression(bound),
                    None => Ok(constant((), span)),
                });
                let bounds = bounds.collect::<Result<_, _>>()?;
                filtered("[:]", self.expression(&slice.expr)?, bounds, span)
            }
            Expr::UnaryOp(operation) => {
                let value = self.expression(&operation.expr)?;
                match operation.op {
                    UnaryOpKind::Not => not(value, span),
                    UnaryOpKind::Neg => filtered("neg", value, Vec::new(), span),
                }
            }
            Expr::BinOp(operation) => {
                let (left, right) = (self.expression(&operation.left)?, self.expression(&operation.right)?);
                match operator(operation.op) {
                    Some(name) => filtered(name, left, vec![right], span),
                    None => binary(operation.op, left, right, span),
                }
            }
            Expr::Compare(chain) => self.chain(chain)?,
            Expr::IfExpr(choice) => {
                let false_expr =
                    choice.false_expr.as_ref().map(|other| self.expression(other)).transpose()?;
                let (test_expr, true_expr) =
                    (self.expression(&choice.test_expr)?, self.expression(&choice.true_expr)?);
                Expr::IfExpr(Spanned::new(IfExpr { test_expr, true_expr, false_expr }, span))
            }
            Expr::Filter(filter) => {
                let expr = Some(self.expression(filter.expr.as_ref().ok_or_else(unlike)?)?);
                let args = self.arguments(&filter.args, false)?;
                Expr::Filter(Spanned::new(Filter { name: filter.name, expr, args }, span))
            }
            Expr::Test(test) => self.test(test)?,
            Expr::GetAttr(lookup) => {
                filtered(".", self.expression(&lookup.expr)?, vec![constant(lookup.name, span)], span)
            }
            Expr::GetItem(lookup) => {
                let arguments = vec![self.expression(&lookup.subscript_expr)?];
                filtered("[]", self.expression(&lookup.expr)?, arguments, span)
            }
            Expr::Call(call) => self.call(call)?,
            Expr::List(list) => {
                let list_of = List { items: self.expressions(&list.items)? };
                let made = Expr::List(Spanned::new(list_of, span));
                // minijinja has no tuples.
                let is_list = self.source.get(between(span)).is_some_and(|source| source.starts_with('['));
                if is_list { made } else { filtered("tuple", made, Vec::new(), span) }
            }
            Expr::Map(map) => {
                let keys = self.expressions(&map.keys)?.into_iter();
                let keys = keys.map(|key| filtered("key", key, Vec::new(), span)).collect();
                Expr::Map(Spanned::new(Map { keys, values: self.expressions(&map.values)? }, span))
            }
        })
    }

    fn test(&mut self, test: &'t Spanned<Test<'s>>) -> Result<Expr<'s>, Error> {
        // `is eq -1` is an error in Jinja, or means something else.
        if test.args.iter().any(|argument| matches!(argument, CallArg::Pos(Expr::UnaryOp(_)))) {
            return Err(unlike());
        }
        let expr = match &test.expr {
            Expr::Var(name)
                if matches!(test.name, "defined" | "undefined") && FUNCTIONS.contains(&name.id) =>
            {
                variable(name.id, name.span())
            }
            other => self.expression(other)?,
        };
        let args = self.arguments(&test.args, false)?;
        Ok(Expr::Test(Spanned::new(Test { name: test.name, expr, args }, test.span())))
    }

    /// `a < b < c` is `a < b and b < c`.
    fn chain(&mut self, chain: &'t Spanned<Compare<'s>>) -> Result<Expr<'s>, Error> {
        let mut links: Option<Expr<'s>> = None;
        let mut before = &chain.expr;
        for link in &chain.ops {
            let (left, right) = (self.expression(before)?, self.expression(&link.expr)?);
            let compared = match link.op {
                CompareOpKind::NotIn => not(filtered("in", left, vec![right], chain.span()), chain.span()),
                other => filtered(comparison(other), left, vec![right], chain.span()),
            };
            links = Some(match links {
                Some(links) => binary(BinOpKind::ScAnd, links, compared, chain.span()),
                None => compared,
            });
            before = &link.expr;
        }
        links.ok_or_else(unlike)
    }

    fn call(&mut self, call: &'t Spanned<Call<'s>>) -> Result<Expr<'s>, Error> {
        match &call.expr {
            Expr::Var(name) => {
                let with_defaults = self.macros.get(name.id).copied();
                if with_defaults.is_none() && !FUNCTIONS.contains(&name.id) {
                    return Err(unlike());
                }
                self.found.calls.push((name.id, &call.args));
                let args = self.arguments(&call.args, with_defaults == Some(true))?;
                Ok(Expr::Call(Spanned::new(Call { expr: variable(name.id, name.span()), args }, call.span())))
            }
            Expr::GetAttr(method) => {
                let expr = Some(self.expression(&method.expr)?);
                let mut args = vec![CallArg::Pos(constant(method.name, call.span()))];
                args.extend(self.arguments(&call.args, false)?);
                Ok(Expr::Filter(Spanned::new(Filter { name: "()", expr, args }, call.span())))
            }
            _ => Err(unlike()),
        }
    }

    fn arguments(&mut self, arguments: &'t [CallArg<'s>], given: bool) -> Result<Vec<CallArg<'s>>, Error> {
        let mut value = |argument: &'t Expr<'s>| {
            let value = self.expression(argument)?;
            let span = argument.span();
            Ok::<_, Error>(if given { filtered("given", value, Vec::new(), span) } else { value })
        };
        let arguments = arguments.iter().map(|argument| match argument {
            CallArg::Pos(argument) => value(argument).map(CallArg::Pos),
            CallArg::Kwarg(name, argument) => value(argument).map(|argument| CallArg::Kwarg(name, argument)),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(unlike()),
        });
        arguments.collect()
    }
}
