//! Text as numbers: reading, splitting into training and validation, drawing batches.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use rand::rngs::StdRng;
use stovepipe::burn::tensor::{Device, Int, Tensor, TensorData};
use walkdir::{DirEntry, WalkDir};

/// The last tenth of the text is for validation.
const VALIDATION_SHARE: usize = 10;

/// A text, its characters numbered.
pub(crate) struct Corpus {
    ids: Vec<i32>,
    characters: Vec<char>,
    /// Where validation starts.
    split: usize,
    entropy: f64,
}

impl Corpus {
    /// Reads a file, or else the workspace's sources and documents in sorted order.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self> {
        let text = match file {
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("{} can't be read as text", file.display()))?,
            None => workspace_text()?,
        };
        ensure!(!text.is_empty(), "the text is empty");
        let mut counts = BTreeMap::<char, usize>::new();
        for character in text.chars() {
            *counts.entry(character).or_default() += 1;
        }
        let characters: Vec<char> = counts.keys().copied().collect();
        let number: BTreeMap<char, i32> =
            characters.iter().enumerate().map(|(n, c)| (*c, n as i32)).collect();
        let ids: Vec<i32> = text.chars().map(|c| number[&c]).collect();
        let total = ids.len() as f64;
        let entropy = counts.values().map(|&n| n as f64 / total).map(|p| -p * p.ln()).sum();
        Ok(Self { split: ids.len() - ids.len() / VALIDATION_SHARE, ids, characters, entropy })
    }

    /// Number of characters.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Number of different characters.
    pub(crate) fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    /// The loss in nats of guessing by frequency alone.
    pub(crate) fn unigram_entropy(&self) -> f64 {
        self.entropy
    }

    /// Whether both parts hold a sequence and the character after it.
    pub(crate) fn is_enough_for(&self, seq: usize) -> bool {
        let validation = self.ids.len() - self.split;
        seq >= 1 && self.split.min(validation) > seq + 1
    }

    /// A batch of random sequences from the training part, and each one's next characters. Both
    /// have the shape `[batch, seq]`.
    pub(crate) fn training(
        &self,
        rng: &mut StdRng,
        batch: usize,
        seq: usize,
    ) -> (Tensor<2, Int>, Tensor<2, Int>) {
        draw(&self.ids[..self.split], rng, batch, seq)
    }

    /// The same from the validation part.
    pub(crate) fn validation(
        &self,
        rng: &mut StdRng,
        batch: usize,
        seq: usize,
    ) -> (Tensor<2, Int>, Tensor<2, Int>) {
        draw(&self.ids[self.split..], rng, batch, seq)
    }

    /// The start of the validation part.
    pub(crate) fn prompt(&self, length: usize) -> Vec<i32> {
        self.ids[self.split..self.split + length].to_vec()
    }

    /// Numbers back as text.
    pub(crate) fn text(&self, ids: &[i32]) -> String {
        ids.iter().filter_map(|&id| self.characters.get(id as usize)).collect()
    }
}

/// Numbers as a tensor of shape `[rows, columns]`.
pub(crate) fn tensor(ids: &[i32], rows: usize, columns: usize) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids.to_vec(), [rows, columns]), &Device::flex())
}

fn draw(
    ids: &[i32],
    rng: &mut StdRng,
    batch: usize,
    seq: usize,
) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let starts: Vec<usize> = (0..batch).map(|_| rng.random_range(0..ids.len() - seq)).collect();
    let rows = |shift: usize| {
        let rows = starts.iter().flat_map(|&start| &ids[start + shift..start + shift + seq]);
        tensor(&rows.copied().collect::<Vec<_>>(), batch, seq)
    };
    (rows(0), rows(1))
}

fn workspace_text() -> Result<String> {
    // Where Cargo runs it, else where it was built.
    let built = || env!("CARGO_MANIFEST_DIR").into();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(built);
    let root = Path::new(&package).join("..");
    let skipped = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() > 0 && (name == "target" || name.starts_with('.'))
    };
    let mut text = String::new();
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(|e| !skipped(e)) {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            let file =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            text.push_str(&file);
        }
    }
    Ok(text)
}
