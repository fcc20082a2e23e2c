//! Nodes of a syntax tree, and the filters in place of operators.

use minijinja::{
    Value,
    machinery::{
        Span,
        ast::{
            BinOp, BinOpKind, CallArg, CompareOpKind, Const, EmitExpr, Expr, Filter, Spanned, Stmt, UnaryOp,
            UnaryOpKind, Var,
        },
    },
};

/// The filter in place of an operator; `and` and `or` stay.
pub(super) const fn operator(kind: BinOpKind) -> Option<&'static str> {
    Some(match kind {
        BinOpKind::Eq => "==",
        BinOpKind::Ne => "!=",
        BinOpKind::Lt => "<",
        BinOpKind::Lte => "<=",
        BinOpKind::Gt => ">",
        BinOpKind::Gte => ">=",
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        BinOpKind::Concat => "~",
        BinOpKind::In => "in",
        BinOpKind::ScAnd | BinOpKind::ScOr => return None,
    })
}

pub(super) const fn comparison(kind: CompareOpKind) -> &'static str {
    match kind {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In | CompareOpKind::NotIn => "in",
    }
}

pub(super) fn filtered<'s>(
    name: &'static str,
    value: Expr<'s>,
    arguments: Vec<Expr<'s>>,
    span: Span,
) -> Expr<'s> {
    let args = arguments.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(Filter { name, expr: Some(value), args }, span))
}

/// `and` or `or`. minijinja reckons constants in advance, where `0 and 1` becomes false: the left side must not be one.
pub(super) fn binary<'s>(op: BinOpKind, left: Expr<'s>, right: Expr<'s>, span: Span) -> Expr<'s> {
    let left = filtered("same", left, Vec::new(), span);
    Expr::BinOp(Spanned::new(BinOp { op, left, right }, span))
}

pub(super) fn not(expr: Expr<'_>, span: Span) -> Expr<'_> {
    Expr::UnaryOp(Spanned::new(UnaryOp { op: UnaryOpKind::Not, expr }, span))
}

pub(super) fn variable(id: &str, span: Span) -> Expr<'_> {
    Expr::Var(Spanned::new(Var { id }, span))
}

pub(super) fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(Const { value: value.into() }, span))
}

pub(super) fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, span))
}
