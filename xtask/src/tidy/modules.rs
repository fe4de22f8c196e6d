//! The modules of a crate: which file is which module, and which file defines what a path names.
//! Re-exports are followed to the file that has the item.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::tidy::reader::{File, Mention, Use, read};

/// More re-exports of one another are a circle.
const REEXPORTS: usize = 8;

/// A crate's files by module path (`["plan", "grid"]`); the root has none.
pub(super) struct Modules {
    files: BTreeMap<Vec<String>, Module>,
}

/// A file.
pub(super) struct Module {
    /// Path below the crate's `src`.
    pub(super) file: String,
    pub(super) content: File,
}

/// Where a path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// The module in which the path's first part ends: where the name was asked for.
    pub(super) asked: Vec<String>,
    /// The module whose file defines it.
    pub(super) defined: Vec<String>,
    /// Whether it names a module rather than something in one.
    pub(super) is_module: bool,
}

impl Modules {
    /// Reads a crate from the texts of its files, by path below `src`, beginning with `root`.
    pub(super) fn read(root: &str, texts: &BTreeMap<String, String>) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut waiting = vec![(Vec::new(), root.to_owned())];
        while let Some((path, file)) = waiting.pop() {
            let text = texts.get(&file).with_context(|| format!("{file} isn't there"))?;
            let content = read(text).with_context(|| file.clone())?;
            let folder = if path.is_empty() { String::new() } else { path.join("/") + "/" };
            for (name, is_test) in &content.modules {
                if *is_test {
                    continue;
                }
                let places = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
                let Some(place) = places.into_iter().find(|place| texts.contains_key(place)) else {
                    bail!("{file} declares {name}, whose file isn't there");
                };
                waiting.push((path.iter().chain([name]).cloned().collect(), place));
            }
            files.insert(path, Module { file, content });
        }
        Ok(Self { files })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Vec<String>, &Module)> {
        self.files.iter()
    }

    pub(super) fn file(&self, module: &[String]) -> &str {
        self.files.get(module).map_or("", |module| &module.file)
    }

    /// Where a path leads that stands in the module `from`; `None` if out of the crate, or to
    /// something that is no item of a module (a method, a variant's field).
    pub(super) fn find(&self, from: &[String], mention: &Mention) -> Option<Found> {
        let (asked, rest) = self.walk(from, &mention.segments)?;
        match rest.first() {
            Some(name) => {
                let defined = self.defining(&asked, name, REEXPORTS)?;
                Some(Found { asked, defined, is_module: false })
            }
            None => Some(Found { defined: asked.clone(), asked, is_module: true }),
        }
    }

    /// The module that a path goes through last, and what follows.
    fn walk<'a>(&self, from: &[String], path: &'a [String]) -> Option<(Vec<String>, &'a [String])> {
        let mut module = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (module, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    module.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                module.push(first.to_owned());
                if !self.files.contains_key(&module) {
                    return None;
                }
                rest = &path[1..];
            }
        }
        while let [name, after @ ..] = rest {
            module.push(name.clone());
            if !self.files.contains_key(&module) {
                module.pop();
                break;
            }
            rest = after;
        }
        Some((module, rest))
    }

    /// The module whose file has the item that is called `name` in `module`.
    fn defining(&self, module: &[String], name: &str, depth: usize) -> Option<Vec<String>> {
        let content = &self.files.get(module)?.content;
        if content.items.iter().any(|item| item == name) {
            return Some(module.to_vec());
        }
        let depth = depth.checked_sub(1)?;
        let named = content.uses.iter().find(|one| one.name.as_deref() == Some(name));
        if let Some(Use { path, .. }) = named {
            let (inner, rest) = self.walk(module, &path.segments)?;
            return match rest.first() {
                Some(original) => self.defining(&inner, original, depth),
                None => Some(inner),
            };
        }
        content.uses.iter().filter(|one| one.name.is_none()).find_map(|glob| {
            let (inner, _) = self.walk(module, &glob.path.segments)?;
            self.defining(&inner, name, depth)
        })
    }
}
