//! Options given in parts, as in `--kv-transfer-config.kv_role both`: made one option with JSON, as vLLM does (vLLM 0.32,
//! utils/argparse_utils.py, `FlexibleArgumentParser.parse_args`).

use serde_json::{Map, Value};

use super::numbers;

/// Deepest path of keys.
const MAX_DEPTH: usize = 32;
/// Most options given in parts.
const MAX_TABLES: usize = 64;

/// Puts the parts of each option together, behind the other words.
pub(super) fn merge(words: Vec<String>) -> Vec<String> {
    let (mut others, mut tables): (Vec<String>, Vec<(String, Value)>) = (vec![], vec![]);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (path, value) = match word.split_once('=') {
            Some((path, value)) => (path, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        if !path.starts_with('-') || !path.contains('.') {
            others.push(word);
            continue;
        }
        let Some(value) = value.or_else(|| words.next()) else { break };
        let (path, value) = match path.strip_suffix('+') {
            Some(path) => (path, value.split(',').map(Value::from).collect()),
            None => (path, read(&value)),
        };
        let mut keys = path.split('.');
        let option = keys.next().unwrap_or_default();
        let keys: Vec<&str> = keys.collect();
        if keys.len() > MAX_DEPTH {
            continue;
        }
        let part = keys
            .into_iter()
            .rev()
            .fold(value, |inner, key| Value::Object(Map::from_iter([(key.to_owned(), inner)])));
        let has_room = tables.len() < MAX_TABLES;
        match tables.iter_mut().find(|(name, _)| name == option) {
            Some((_, table)) => update(table, part),
            None if has_room => tables.push((option.to_owned(), part)),
            None => {}
        }
    }
    others.extend(tables.into_iter().flat_map(|(option, table)| [option, table.to_string()]));
    others
}

/// JSON, a count such as `80g`, or a text.
fn read(text: &str) -> Value {
    let count = || numbers::human_readable(text).map(Value::from);
    serde_json::from_str(text).ok().or_else(count).unwrap_or_else(|| text.into())
}

/// Puts what is new into a table; lists are joined.
fn update(table: &mut Value, new: Value) {
    match (table, new) {
        (Value::Object(table), Value::Object(new)) => {
            for (key, value) in new {
                match table.get_mut(&key) {
                    Some(old) => update(old, value),
                    None => {
                        table.insert(key, value);
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(new)) => items.extend(new),
        (old, new) => *old = new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_one_option_behind_the_others() {
        let of = |line: &str| merge(line.split(' ').map(Into::into).collect()).join(" ");
        for (line, expected) in [
            ("m --a.b 1 --port 2", r#"m --port 2 --a {"b":1}"#),
            ("--a.b.c=x --a.b.d 80g --a.b.c y", r#"--a {"b":{"c":"y","d":80000000000}}"#),
            ("--a.l+ x,1 --a.l+=y", r#"--a {"l":["x","1","y"]}"#),
            (r#"--a.x {"y":[1]} --a.x.z true"#, r#"--a {"x":{"y":[1],"z":true}}"#),
            ("--rate=0.5 --gpu 0.9", "--rate=0.5 --gpu 0.9"),
            ("--a.b", ""),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
        let deep = format!("--a{} 1", ".b".repeat(100_000));
        assert_eq!(of(&deep), "");
    }
}
