//! Learned output lengths as they stand in the file.

use gpuadmit_core::{
    book::{ClassKey, Learned},
    lengths::Counts,
};
use serde::{Deserialize, Serialize};

/// By model, and by class of requests within it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// By model.
    models: Vec<OfModel>,
    /// By class.
    classes: Vec<OfClass>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OfModel {
    model: String,
    #[serde(flatten)]
    counts: Buckets,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OfClass {
    key: u64,
    model: String,
    #[serde(flatten)]
    counts: Buckets,
}

/// By bucket, ascending; a file with another number of buckets is of another daemon and says nothing to this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Buckets {
    reached: Vec<f64>,
    ended: Vec<f64>,
}

impl From<Counts> for Buckets {
    fn from(counts: Counts) -> Self {
        Self { reached: counts.reached.into(), ended: counts.ended.into() }
    }
}

impl Buckets {
    fn counts(self) -> Option<Counts> {
        Some(Counts { reached: self.reached.try_into().ok()?, ended: self.ended.try_into().ok()? })
    }
}

impl From<Learned> for Lengths {
    fn from(learned: Learned) -> Self {
        let of_model = |(model, counts): (_, Counts)| OfModel { model, counts: counts.into() };
        let of_class = |(key, model, counts): (ClassKey, _, Counts)| OfClass {
            key: key.0,
            model,
            counts: counts.into(),
        };
        Self {
            models: learned.models.into_iter().map(of_model).collect(),
            classes: learned.classes.into_iter().map(of_class).collect(),
        }
    }
}

impl From<Lengths> for Learned {
    fn from(lengths: Lengths) -> Self {
        let of_model = |one: OfModel| Some((one.model, one.counts.counts()?));
        let of_class = |one: OfClass| Some((ClassKey(one.key), one.model, one.counts.counts()?));
        Self {
            models: lengths.models.into_iter().filter_map(of_model).collect(),
            classes: lengths.classes.into_iter().filter_map(of_class).collect(),
        }
    }
}
