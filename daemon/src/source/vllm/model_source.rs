//! Where an engine has its tokenizer from: its command line, its environment, its working directory.

use std::{path::Path, sync::Arc};

use gpuadmit_core::observation::ModelSource;

/// Longest path or name kept, bytes.
const MAX_BYTES: usize = 4096;

/// What was told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    tokenizer: Option<String>,
    revision: Option<String>,
    tokenizer_revision: Option<String>,
    download_dir: Option<String>,
    chat_template: Option<String>,
    template_kwargs: Option<String>,
    content_format: Option<String>,
    mode: Option<String>,
    hub_cache: Option<String>,
    home: Option<String>,
    cache_home: Option<String>,
    user_home: Option<String>,
    /// Its working directory.
    pub folder: Option<String>,
    /// Its root folder as we see it.
    pub root: Option<String>,
}

impl Places {
    /// Takes in a flag of vLLM.
    pub fn set(&mut self, flag: &str, value: Option<&str>) {
        let place = match flag {
            "tokenizer" => &mut self.tokenizer,
            "revision" => &mut self.revision,
            "tokenizer-revision" => &mut self.tokenizer_revision,
            "download-dir" => &mut self.download_dir,
            "chat-template" => &mut self.chat_template,
            "chat-template-content-format" => &mut self.content_format,
            "default-chat-template-kwargs" if value.is_some_and(|value| value.len() <= MAX_BYTES) => {
                &mut self.template_kwargs
            }
            // They are given key by key, or by a flag of a parser: what they are is not known.
            flag if flag.starts_with("default-chat-template-kwargs") || flag == "cohere-format" => {
                self.template_kwargs = Some(String::new());
                return;
            }
            "tokenizer-mode" => &mut self.mode,
            _ => return,
        };
        *place = value.filter(|value| value.len() <= MAX_BYTES).map(Into::into);
    }

    /// Takes in a variable of its environment (huggingface_hub, constants.py).
    pub fn add_variable(&mut self, name: &str, value: &str) {
        let place = match name {
            "HF_HUB_CACHE" | "HUGGINGFACE_HUB_CACHE" => &mut self.hub_cache,
            "HF_HOME" => &mut self.home,
            "XDG_CACHE_HOME" => &mut self.cache_home,
            "HOME" => &mut self.user_home,
            _ => return,
        };
        if !value.is_empty() && value.len() <= MAX_BYTES {
            *place = Some(value.into());
        }
    }

    /// Where the tokenizer of an engine with this model is. `None`: it uses none that this daemon can read.
    #[must_use]
    pub fn source(&self, model: Option<&str>) -> Option<ModelSource> {
        // mistral, deepseek_v32 and the like tokenize and render by code of their own.
        if !matches!(self.mode.as_deref(), None | Some("auto" | "hf" | "slow")) {
            return None;
        }
        let name = self.tokenizer.as_deref().or(model)?;
        let own = self.tokenizer.is_some().then_some(self.tokenizer_revision.as_deref());
        let revision = own.unwrap_or(self.tokenizer_revision.as_deref().or(self.revision.as_deref()));
        let text = |text: &str| Arc::<str>::from(text);
        let here = |path: &str| match &self.folder {
            Some(folder) => Path::new(folder).join(path).to_string_lossy().as_ref().into(),
            None => text(path),
        };
        Some(ModelSource {
            name: text(name),
            folder: self.folder.as_deref().map(text),
            caches: self.caches().iter().map(|cache| here(cache)).collect(),
            revision: revision.map(text),
            chat_template: self.chat_template.as_deref().map(here),
            template_kwargs: self.template_kwargs.as_deref().map(text),
            content_format: self.content_format.as_deref().filter(|format| *format != "auto").map(text),
            root: self.root.as_deref().map(text),
        })
    }

    /// Where a path of it is, as seen from here; `None`: it is relative to a folder that is not known.
    #[must_use]
    pub fn seen(&self, path: &str) -> Option<String> {
        let absolute = match &self.folder {
            _ if path.starts_with('/') => path.to_owned(),
            Some(folder) => format!("{folder}/{path}"),
            None => return None,
        };
        Some(self.root.as_deref().unwrap_or_default().to_owned() + &absolute)
    }

    fn caches(&self) -> Vec<String> {
        let below =
            |folder: &Option<String>, rest: &str| folder.as_ref().map(|folder| format!("{folder}/{rest}"));
        let hub = self
            .hub_cache
            .clone()
            .or_else(|| below(&self.home, "hub"))
            .or_else(|| below(&self.cache_home, "huggingface/hub"))
            .or_else(|| below(&self.user_home, ".cache/huggingface/hub"));
        self.download_dir.clone().into_iter().chain(hub).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Places {
        let mut places = Places { folder: Some("/srv".into()), ..Places::default() };
        flags.iter().for_each(|(flag, value)| places.set(flag, Some(value)));
        variables.iter().for_each(|(name, value)| places.add_variable(name, value));
        places
    }

    #[test]
    fn the_cache_is_that_of_the_engines_own_environment() {
        let cache = |variables: &[(&str, &str)]| places(&[], variables).source(Some("org/m")).unwrap().caches;
        let home = ("HOME", "/home/llm");
        assert_eq!(cache(&[home]), ["/home/llm/.cache/huggingface/hub".into()]);
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x")]), ["/x/huggingface/hub".into()]);
        assert_eq!(cache(&[home, ("HF_HOME", "hf"), ("HF_HUB_CACHE", "")]), ["/srv/hf/hub".into()]);
        assert_eq!(cache(&[home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), ["/c".into()]);
        assert!(cache(&[]).is_empty());
    }

    #[test]
    fn defaults_of_chat_templates_are_kept_and_not_known_where_they_are_not_one_json_text() {
        let flag = "default-chat-template-kwargs";
        let kwargs = |flags: &[_]| places(flags, &[]).source(Some("m")).unwrap().template_kwargs;
        assert_eq!(kwargs(&[]), None);
        assert_eq!(
            kwargs(&[(flag, r#"{"enable_thinking":false}"#)]),
            Some(r#"{"enable_thinking":false}"#.into())
        );
        let long = "1".repeat(MAX_BYTES + 1);
        for unknown in [("default-chat-template-kwargs.a", "1"), (flag, &long), ("cohere-format", "x")] {
            assert_eq!(kwargs(&[unknown]), Some("".into()), "{}", unknown.0);
        }
        let format =
            |format| places(&[("chat-template-content-format", format)], &[]).source(Some("m")).unwrap();
        assert_eq!(format("auto").content_format, None);
        assert_eq!(format("openai").content_format.as_deref(), Some("openai"));
    }

    #[test]
    fn flags_name_another_tokenizer_its_revision_and_template() {
        let flags =
            [("tokenizer", "org/t"), ("revision", "a"), ("chat-template", "t.jinja"), ("download-dir", "/d")];
        let source = places(&flags, &[]).source(Some("org/m")).unwrap();
        assert_eq!((&*source.name, source.revision, source.caches), ("org/t", None, vec!["/d".into()]));
        assert_eq!(source.chat_template.as_deref(), Some("/srv/t.jinja"));
        let pinned = places(&[("revision", "a")], &[]).source(Some("org/m")).unwrap();
        assert_eq!(pinned.revision.as_deref(), Some("a"));
        assert_eq!(places(&[("tokenizer-mode", "mistral")], &[]).source(Some("org/m")), None);
        assert_eq!(places(&[], &[]).source(None), None);
    }
}
