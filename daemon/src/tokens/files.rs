//! Where a model's tokenizer lies: beside the model, or in the Hugging Face cache that its engine uses.

use std::{
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use gpuadmit_core::observation::ModelSource;
use serde_json::{Map, Value as Json};

use crate::regular;

/// Largest tokenizer.json read: those of a vocabulary of 262,144 have 33 MB.
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// Largest of the other files read.
const MAX_OTHER_BYTES: u64 = 4 << 20;
/// Longest commit id in a cache.
const MAX_COMMIT_BYTES: u64 = 128;
/// Keys of tokenizer_config.json that templates name.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// What is needed to count a model's tokens.
pub(super) struct Files {
    /// Text of tokenizer.json.
    pub(super) tokenizer: Vec<u8>,
    /// How chats are rendered, where that is known.
    pub(super) chat: Option<Chat>,
}

/// What a chat is rendered with.
#[derive(Default)]
pub(super) struct Chat {
    /// Chat template.
    pub(super) template: String,
    /// Special tokens by name.
    pub(super) special: Map<String, Json>,
    /// Variables that the engine gives to every rendering.
    pub(super) defaults: Map<String, Json>,
    /// Whether the template gets a message's content in parts, where the engine was told.
    pub(super) wants_parts: Option<bool>,
}

/// Why a model's tokenizer is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    /// No folder with a tokenizer.json.
    #[error("no tokenizer.json beside the model or in its engine's Hugging Face cache")]
    Nowhere,
    /// It is there but cannot be used.
    #[error("{path}: {why}")]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Reads what `source` names.
pub(super) fn read(source: &ModelSource) -> Result<Files, Missing> {
    // In its own file system first: the same path may be another folder in ours.
    for root in source.root.as_deref().map(Path::new).into_iter().chain([Path::new("/")]) {
        let folder = folders(source, root).into_iter().find(|folder| folder.join("tokenizer.json").is_file());
        if let Some(folder) = folder {
            return read_folder(&folder, root, source);
        }
    }
    Err(Missing::Nowhere)
}

/// An absolute path below another root.
fn below(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    root.join(path.as_ref().strip_prefix("/").unwrap_or(path.as_ref()))
}

/// Reads a folder, with what the engine was told on its command line.
fn read_folder(folder: &Path, root: &Path, source: &ModelSource) -> Result<Files, Missing> {
    let tokenizer = bytes(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES)?;
    let config = bytes(&folder.join("tokenizer_config.json"), MAX_OTHER_BYTES).unwrap_or_default();
    let config: Map<String, Json> = serde_json::from_slice(&config).unwrap_or_default();
    let text =
        |path: &Path| bytes(path, MAX_OTHER_BYTES).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let template = match source.chat_template.as_deref() {
        Some(told) => text(&below(root, told)),
        None => text(&folder.join("chat_template.jinja")).or_else(|| in_config(config.get("chat_template")?)),
    };
    let defaults = source.template_kwargs.as_deref().map_or(Some(Map::new()), |told| {
        serde_json::from_str::<Option<Map<String, Json>>>(told).ok().map(Option::unwrap_or_default)
    });
    let wants_parts = source.content_format.as_deref().map(|format| format == "openai");
    let chat = template.zip(defaults).map(|(template, defaults)| {
        let special = special(&config);
        Chat { template, special, defaults, wants_parts }
    });
    Ok(Files { tokenizer, chat })
}

/// A template is a text, or the one named `default` among several.
fn in_config(value: &Json) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let named = |one: &&Json| one.get("name").and_then(Json::as_str) == Some("default");
    value.as_array()?.iter().find(named)?.get("template")?.as_str().map(Into::into)
}

/// A special token is a text, or a table with its content.
fn special(config: &Map<String, Json>) -> Map<String, Json> {
    let token = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(Json::from);
    SPECIAL.iter().filter_map(|key| Some(((*key).to_owned(), token(config.get(*key)?)?))).collect()
}

/// Folders in which the tokenizer may be, by precedence.
fn folders(source: &ModelSource, root: &Path) -> Vec<PathBuf> {
    let name = Path::new(&*source.name);
    let told = name.parent().filter(|_| name.file_name().is_some_and(|file| file == "tokenizer.json"));
    let here = match &source.folder {
        Some(folder) if name.is_relative() => Some(Path::new(&**folder).join(name)),
        None if name.is_relative() => None,
        _ => Some(told.unwrap_or(name).to_owned()),
    };
    let cached = source.caches.iter().filter_map(|cache| in_cache(&below(root, &**cache), source));
    here.iter().map(|folder| below(root, folder)).chain(cached).collect()
}

/// The snapshot of a repository in a cache: `models--ORG--NAME/snapshots/COMMIT` (huggingface_hub, file_download.py).
fn in_cache(cache: &Path, source: &ModelSource) -> Option<PathBuf> {
    let revision = source.revision.as_deref().unwrap_or("main");
    let plain = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if source.name.is_empty()
        || !plain(&source.name)
        || !plain(revision)
        || source.name.matches('/').count() > 1
    {
        return None;
    }
    let repository = cache.join(format!("models--{}", source.name.replace('/', "--")));
    let commit = bytes(&repository.join("refs").join(revision), MAX_COMMIT_BYTES).ok();
    let commit = commit.and_then(|bytes| String::from_utf8(bytes).ok());
    let commit = commit.as_deref().map_or(revision, str::trim);
    plain(commit).then(|| repository.join("snapshots").join(commit))
}

/// At most `most` bytes of a regular file; a longer one is refused.
fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, Missing> {
    let unusable = |why: String| Missing::Unusable { path: path.to_owned(), why };
    let mut bytes = Vec::new();
    let read = regular::open(path).and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut bytes));
    read.map_err(|error| unusable(error.to_string()))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        return Ok(bytes);
    }
    Err(unusable(format!("it is larger than {most} bytes")))
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;

    fn source(name: &str) -> ModelSource {
        let name = name.into();
        ModelSource {
            name,
            folder: None,
            caches: vec![],
            revision: None,
            chat_template: None,
            template_kwargs: None,
            content_format: None,
            root: None,
        }
    }

    #[test]
    fn a_repository_is_found_in_the_cache_by_its_revision() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("models--org--name");
        for folder in ["refs", "snapshots/abc", "snapshots/def"] {
            fs::create_dir_all(repository.join(folder)).unwrap();
        }
        fs::write(repository.join("refs/main"), "abc\n").unwrap();
        fs::write(repository.join("snapshots/abc/tokenizer.json"), "A").unwrap();
        fs::write(repository.join("snapshots/def/tokenizer.json"), "D").unwrap();
        let config = r#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#;
        fs::write(repository.join("snapshots/abc/tokenizer_config.json"), config).unwrap();
        let cache: Arc<str> = cache.path().to_str().unwrap().into();
        let main = ModelSource { caches: vec!["/nowhere".into(), cache], ..source("org/name") };
        let files = read(&main).ok().unwrap();
        assert_eq!(files.tokenizer.as_slice(), b"A");
        let chat = files.chat.unwrap();
        assert_eq!((&*chat.template, chat.special.get("bos_token")), ("d", Some(&Json::from("<s>"))));
        let pinned = ModelSource { revision: Some("def".into()), ..main.clone() };
        assert_eq!(read(&pinned).ok().unwrap().tokenizer, b"D");
        for odd in ["../name", "/etc", "a/b/c", "org/..", ""] {
            assert_eq!(
                in_cache(Path::new("/c"), &ModelSource { name: odd.into(), ..main.clone() }),
                None,
                "{odd}"
            );
        }
    }

    #[test]
    fn a_folder_is_taken_as_the_engine_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        fs::create_dir(&model).unwrap();
        fs::write(model.join("tokenizer.json"), "T").unwrap();
        fs::write(model.join("chat_template.jinja"), "J").unwrap();
        let here: Arc<str> = folder.path().to_str().unwrap().into();
        for (name, folder) in [
            (model.to_str().unwrap(), None),
            (model.join("tokenizer.json").to_str().unwrap(), None),
            ("model", Some(here)),
        ] {
            let files = read(&ModelSource { folder, ..source(name) }).ok().unwrap();
            assert_eq!(template(files).as_deref(), Some("J"));
        }
        assert_eq!(read(&source("model")).err(), Some(Missing::Nowhere));
        // An engine in a container has the folder elsewhere.
        let root: Arc<str> = folder.path().to_str().unwrap().into();
        let contained = ModelSource { root: Some(root), ..source("/model") };
        assert_eq!(template(read(&contained).ok().unwrap()).as_deref(), Some("J"));
        // A template that was told but is not there is not replaced by another.
        let told = ModelSource { chat_template: Some("/nowhere".into()), ..source(model.to_str().unwrap()) };
        assert_eq!(template(read(&told).ok().unwrap()), None);
    }

    fn template(files: Files) -> Option<String> {
        Some(files.chat?.template)
    }

    #[test]
    fn without_knowing_the_engines_own_variables_no_chat_is_rendered() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), "T").unwrap();
        fs::write(folder.path().join("chat_template.jinja"), "J").unwrap();
        let defaults = |told: &str| {
            let source = source(folder.path().to_str().unwrap());
            let files = read(&ModelSource { template_kwargs: Some(told.into()), ..source }).ok().unwrap();
            Some(files.chat?.defaults)
        };
        assert_eq!(defaults("{\"a\":1}"), Some(Map::from_iter([("a".into(), Json::from(1))])));
        assert_eq!(defaults("null"), Some(Map::new()));
        assert_eq!((defaults(""), defaults("[1]")), (None, None));
    }
}
