//! What has been learned of output lengths: per model, and per class of requests within it (tenant, stop sequences,
//! max_tokens to a factor of four, priority class). A class leans on its model until it has outputs of its own.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use crate::{
    lengths::{Counts, Histogram, Survival, seed_weight},
    parts::Parts,
    request::Request,
    units::Tokens,
};

/// Most models learned; beyond it new ones share what is assumed before anything is known.
const MAX_MODELS: usize = 64;
/// Most classes learned; beyond it the one unused for longest is forgotten.
const MAX_CLASSES: usize = 512;
/// Outputs' worth of the model in each class's distribution.
const MODEL_WEIGHT: f64 = 40.0;
/// Updates of a model after which a class that leans on it is worked out anew.
const STALE: u64 = 64;

/// Names a class of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassKey(pub u64);

impl ClassKey {
    /// The class of `request`.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        let limit = request.max_tokens.map(|most| most.0.max(1).ilog2() / 2);
        (request.model, request.tenant, request.has_stop, limit, request.class).hash(&mut hasher);
        Self(hasher.finish())
    }
}

#[derive(Clone, Debug)]
struct Model {
    counts: Counts,
    survival: Survival,
    updates: u64,
}

#[derive(Clone, Debug)]
struct Class {
    model: Arc<str>,
    counts: Counts,
    survival: Survival,
    /// Update of its model that it was worked out with.
    as_of: u64,
    used: u64,
}

/// All that is learned.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    models: BTreeMap<Arc<str>, Model>,
    classes: BTreeMap<ClassKey, Class>,
    prior: Survival,
    uses: u64,
    parts: Parts,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            models: BTreeMap::new(),
            classes: BTreeMap::new(),
            prior: Survival::prior(),
            uses: 0,
            parts: Parts::default(),
        }
    }
}

/// What outlives the daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    /// By model name.
    pub models: Vec<(String, Counts)>,
    /// By class: its key, its model, and its counts.
    pub classes: Vec<(ClassKey, String, Counts)>,
}

impl Book {
    /// With these of its learned parts.
    pub(crate) fn of(parts: Parts) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Distribution for a class of `model`.
    pub(crate) fn survival(&self, model: &str, class: ClassKey) -> &Survival {
        let of_class = self.classes.get(&class).map(|class| &class.survival);
        let learned = of_class.filter(|_| self.parts.lengths && self.parts.lengths_by_class);
        learned.unwrap_or_else(|| self.of_model(model))
    }

    /// Distribution for any request of `model`.
    pub(crate) fn of_model(&self, model: &str) -> &Survival {
        let model = self.models.get(model).filter(|_| self.parts.lengths);
        model.map_or(&self.prior, |model| &model.survival)
    }

    fn model(&mut self, name: &Arc<str>) -> Option<&mut Model> {
        if self.models.len() >= MAX_MODELS && !self.models.contains_key(name) {
            return None;
        }
        let new = || Model { counts: Counts::default(), survival: Survival::prior(), updates: 0 };
        Some(self.models.entry(Arc::clone(name)).or_insert_with(new))
    }

    /// An output of `length` tokens ended by itself, or was `cut` off.
    pub(crate) fn take(&mut self, model: &Arc<str>, class: ClassKey, length: Tokens, cut: bool) {
        let Some(of_model) = self.model(model) else { return };
        of_model.counts.take(length, cut);
        of_model.survival = Survival::of_model(&of_model.counts);
        of_model.updates = of_model.updates.saturating_add(1);
        let (base, as_of) = (of_model.survival.clone(), of_model.updates);
        self.make_room(class);
        self.uses = self.uses.saturating_add(1);
        let new = || Class {
            model: Arc::clone(model),
            counts: Counts::default(),
            survival: base.clone(),
            as_of,
            used: 0,
        };
        let of_class = self.classes.entry(class).or_insert_with(new);
        of_class.counts.take(length, cut);
        of_class.survival = Survival::of(&of_class.counts, Some(&base), MODEL_WEIGHT);
        (of_class.as_of, of_class.used) = (as_of, self.uses);
    }

    fn make_room(&mut self, class: ClassKey) {
        if self.classes.len() < MAX_CLASSES || self.classes.contains_key(&class) {
            return;
        }
        let oldest = self.classes.iter().min_by_key(|(_, class)| class.used).map(|(key, _)| *key);
        if let Some(oldest) = oldest {
            self.classes.remove(&oldest);
        }
    }

    /// The engine's own histogram went from `before` to `now`; `told` of the outputs in it are known already, and the share
    /// `cut` of them was cut off.
    pub(crate) fn take_histogram(
        &mut self,
        model: &Arc<str>,
        (before, now): (&Histogram, &Histogram),
        told: u64,
        cut: f64,
    ) {
        let count = |buckets: &[(f64, u64)]| buckets.last().map_or(0, |(_, count)| *count);
        let untold = count(now).saturating_sub(count(before)).saturating_sub(told);
        if untold == 0 {
            return;
        }
        let Some(of_model) = self.model(model) else { return };
        let most = crate::units::real(untold).min(seed_weight());
        of_model.counts.take_histogram((before, now), most, cut);
        of_model.survival = Survival::of_model(&of_model.counts);
        of_model.updates = of_model.updates.saturating_add(untold);
    }

    /// Works out anew some classes whose model has moved on.
    pub(crate) fn refresh(&mut self, most: usize) {
        let models = &self.models;
        let moved = |class: &Class| {
            models.get(&class.model).filter(|model| model.updates >= class.as_of.saturating_add(STALE))
        };
        let stale = self.classes.values_mut().filter_map(|class| Some((moved(class)?, class)));
        for (model, class) in stale.take(most) {
            class.survival = Survival::of(&class.counts, Some(&model.survival), MODEL_WEIGHT);
            class.as_of = model.updates;
        }
    }

    /// What outlives the daemon.
    pub(crate) fn learned(&self) -> Learned {
        let models = self.models.iter().map(|(name, model)| (name.to_string(), model.counts.clone()));
        let classes =
            self.classes.iter().map(|(key, class)| (*key, class.model.to_string(), class.counts.clone()));
        Learned { models: models.collect(), classes: classes.collect() }
    }

    /// Takes up what an earlier run had learned, within the bounds; figures that no counting gives are left out.
    pub(crate) fn take_up(&mut self, learned: Learned) {
        for (name, counts) in learned.models.into_iter().filter(|(_, counts)| counts.plausible()) {
            if let Some(model) = self.model(&name.into()) {
                model.survival = Survival::of_model(&counts);
                model.counts = counts;
            }
        }
        for (key, name, counts) in learned.classes.into_iter().take(MAX_CLASSES) {
            let model: Arc<str> = name.into();
            if counts.plausible() {
                let survival = Survival::of(&counts, Some(self.of_model(&model)), MODEL_WEIGHT);
                self.classes.insert(key, Class { model, counts, survival, as_of: 0, used: 0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    fn alive(survival: &Survival, tokens: f64) -> f64 {
        libm::exp(-survival.at(tokens))
    }

    #[test]
    fn a_class_leans_on_its_model_until_it_has_outputs_of_its_own() {
        let (model, short, long): (Arc<str>, _, _) = ("m".into(), ClassKey(1), ClassKey(2));
        let mut book = Book::default();
        for _ in 0..500 {
            book.take(&model, short, Tokens(30), false);
        }
        assert!(alive(book.survival("m", long), 100.0) < 0.05);
        for _ in 0..500 {
            book.take(&model, long, Tokens(1000), false);
        }
        assert!(alive(book.survival("m", long), 500.0) > 0.85);
        assert!(alive(book.survival("m", short), 100.0) < 0.05);
        assert!((alive(book.of_model("m"), 500.0) - 0.5).abs() < 0.1);
    }

    #[test]
    fn classes_are_told_apart_by_tenant_stop_set_and_limit() {
        let base = request(10);
        let mut other = base;
        other.tenant = "t";
        assert_ne!(ClassKey::of(&base), ClassKey::of(&other));
        let mut other = base;
        other.max_tokens = Some(Tokens(64));
        assert_ne!(ClassKey::of(&base), ClassKey::of(&other));
        let near = crate::request::Request { max_tokens: Some(Tokens(100)), ..other };
        assert_eq!(ClassKey::of(&near), ClassKey::of(&other));
    }

    #[test]
    fn classes_are_bounded_and_the_least_used_goes_first() {
        let (model, mut book): (Arc<str>, _) = ("m".into(), Book::default());
        for key in 0..=MAX_CLASSES {
            book.take(&model, ClassKey(key as u64), Tokens(5), false);
        }
        assert_eq!(book.classes.len(), MAX_CLASSES);
        assert!(!book.classes.contains_key(&ClassKey(0)));
    }

    #[test]
    fn what_was_learned_survives() {
        let (model, mut book): (Arc<str>, _) = ("m".into(), Book::default());
        for _ in 0..300 {
            book.take(&model, ClassKey(1), Tokens(700), false);
        }
        let mut next = Book::default();
        next.take_up(book.learned());
        let (one, other) = (book.survival("m", ClassKey(1)), next.survival("m", ClassKey(1)));
        assert!((alive(one, 400.0) - alive(other, 400.0)).abs() < 1e-9);
        let mut broken = book.learned();
        broken.models[0].1.reached[3] = f64::NAN;
        broken.classes[0].2.ended[3] = -1.0;
        let mut careful = Book::default();
        careful.take_up(broken);
        assert!(careful.models.is_empty() && careful.classes.is_empty());
    }
}
