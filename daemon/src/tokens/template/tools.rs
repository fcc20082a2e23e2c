//! Tools as vLLM hands them to a chat template: read into types of its own and written out again (0.32,
//! `ChatCompletionToolsParam` in entrypoints/openai/chat_completion/protocol.py, `FunctionDefinition` in
//! entrypoints/generate/base/protocol.py). Keys get its order, what is missing may become null, what it does not know
//! is dropped.

use serde_json::{Map, Value as Json};

/// The tools of a body. What is no tool stays as it is: the engine refuses it.
pub(super) fn rewritten(tools: Json) -> Json {
    match tools {
        Json::Array(tools) => tools.into_iter().map(tool).collect(),
        other => other,
    }
}

fn tool(tool: Json) -> Json {
    let Some(Json::Object(function)) = tool.get("function") else { return tool };
    let told = |from: &Json| from.get("defer_loading").filter(|value| !value.is_null()).cloned();
    let deferred = told(&tool);
    let mut to = Map::new();
    for key in ["name", "description", "parameters"] {
        to.insert(key.into(), function.get(key).cloned().unwrap_or(Json::Null));
    }
    if let Some(strict) = function.get("strict").filter(|value| !value.is_null()) {
        to.insert("strict".into(), strict.clone());
    }
    let of_function = tool.get("function").and_then(told).or_else(|| deferred.clone());
    to.extend(of_function.map(|value| ("defer_loading".to_owned(), value)));
    let kind = tool.get("type").cloned().unwrap_or_else(|| Json::from("function"));
    let mut outer = Map::from_iter([("type".to_owned(), kind), ("function".to_owned(), Json::Object(to))]);
    outer.extend(deferred.map(|value| ("defer_loading".to_owned(), value)));
    Json::Object(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tools: &str) -> String {
        rewritten(serde_json::from_str(tools).unwrap()).to_string()
    }

    /// Expected: `[tool.model_dump() for tool in request.tools]` in vLLM 0.32.
    #[test]
    fn a_tool_gets_the_order_and_the_nulls_of_the_engines_own_types() {
        assert_eq!(
            written(
                r#"[{"function":{"strict":true,"parameters":{"b":1,"a":{}},"x":1,"name":"f"},"cache":1}]"#
            ),
            r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"b":1,"a":{}},"strict":true}}]"#
        );
        assert_eq!(
            written(
                r#"[{"type":"function","defer_loading":true,"function":{"name":"f","description":"d"}}]"#
            ),
            r#"[{"type":"function","function":{"name":"f","description":"d","parameters":null,"defer_loading":true},"defer_loading":true}]"#
        );
    }

    #[test]
    fn what_is_no_tool_stays() {
        for tools in ["null", "[1,{}]", r#"[{"name":"f"}]"#] {
            assert_eq!(written(tools), tools);
        }
    }
}
