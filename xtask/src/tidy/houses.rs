//! Rules for the files of one crate, read as a house. Every file has a floor, nothing imports
//! upward, and no two files import each other. Who needs a thing goes to the file or folder that
//! has it, not to the front door.
//!
//! A crate can be read one room at a time, from the ground up, only while this holds. Files for
//! tests are free.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::modules::{Found, Modules};
use crate::tidy::reader::Mention;

/// Rooms from the ground floor up. A room is a module with everything in it, a part of one
/// (`plan/file`), or several modules on one floor.
pub(crate) type Floors = &'static [&'static [&'static str]];

/// Complains of a crate.
pub(super) fn complaints(modules: &Modules, floors: &[&[&str]]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut edges: BTreeMap<&Vec<String>, BTreeMap<Vec<String>, usize>> = BTreeMap::new();
    for (from, module) in modules.iter() {
        // The crate's root only declares and re-exports, and so may know everything.
        if !from.is_empty() && floor(floors, from).is_none() {
            problems.push(format!("{}: has no floor in the table", module.file));
        }
        let uses = module.content.uses.iter();
        let imports = uses.clone().filter(|one| !one.is_public).map(|one| &one.path);
        for mention in imports.chain(&module.content.paths) {
            let Some(found) = modules.find(from, mention) else { continue };
            if let Some(what) = front_door(from, &found, mention) {
                problems.push(format!("{}:{}: {what}", module.file, mention.line));
            }
            if found.defined.is_empty() && !from.is_empty() && !found.is_module {
                problems.push(format!(
                    "{}:{}: `{}` is defined in the crate's root, above everything",
                    module.file,
                    mention.line,
                    mention.segments.join("::")
                ));
            }
            if found.defined != *from && !found.is_module {
                edges.entry(from).or_default().entry(found.defined).or_insert(mention.line);
            }
        }
        // Re-exports only pass on; but not what others define.
        for one in uses.filter(|one| one.is_public && !from.is_empty()) {
            let Some(found) = modules.find(from, &one.path) else { continue };
            if !found.defined.starts_with(from) {
                problems.push(format!(
                    "{}:{}: re-exports what isn't in its folder",
                    module.file, one.path.line
                ));
            }
        }
    }
    for room in floors.iter().flat_map(|rooms| rooms.iter()) {
        let is_there = |(module, _): (&Vec<String>, _)| is_in(module, room);
        if !modules.iter().any(is_there) {
            problems.push(format!("{room}: has a floor in the table, but isn't there"));
        }
    }
    for (from, to) in edges.iter().filter(|(from, _)| !from.is_empty()) {
        for (to, line) in to {
            if let (Some(here), Some(there)) = (floor(floors, from), floor(floors, to))
                && there > here
            {
                problems.push(format!(
                    "{}:{line}: imports upward, from floor {} to {} on {}",
                    modules.file(from),
                    here + 1,
                    modules.file(to),
                    there + 1
                ));
            }
        }
    }
    problems.extend(circles(modules, &edges));
    problems
}

/// The floor of the longest entry that the module is in.
fn floor(floors: &[&[&str]], module: &[String]) -> Option<usize> {
    let entries = floors.iter().enumerate().flat_map(|(floor, rooms)| {
        let rooms = rooms.iter().filter(|room| is_in(module, room));
        rooms.map(move |room| (room.len(), floor))
    });
    entries.max().map(|(_, floor)| floor)
}

fn is_in(module: &[String], room: &str) -> bool {
    room.split('/').zip(module).filter(|(a, b)| a == b).count() == room.split('/').count()
}

/// Complains of a name that is asked for elsewhere than where it is: at the crate's root, or in a
/// folder that only passes it on.
fn front_door(from: &[String], found: &Found, mention: &Mention) -> Option<String> {
    let is_here = found.asked == from;
    if found.is_module
        || is_here
        || found.defined.starts_with(&found.asked) && !found.asked.is_empty()
    {
        return None;
    }
    let shown = mention.segments.join("::");
    let place = found.defined.join("::");
    (!found.defined.is_empty())
        .then(|| format!("`{shown}` is defined in `crate::{place}`: import it from there"))
}

/// Files that import each other, however indirectly.
fn circles(
    modules: &Modules,
    edges: &BTreeMap<&Vec<String>, BTreeMap<Vec<String>, usize>>,
) -> Vec<String> {
    let reached = |from: &Vec<String>| {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(one) = waiting.pop() {
            for next in edges.get(one).into_iter().flat_map(|to| to.keys()) {
                if !next.is_empty() && seen.insert(next) {
                    waiting.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        edges.keys().filter(|from| !from.is_empty()).map(|from| (*from, reached(from))).collect();
    let mut told = BTreeSet::new();
    let mut problems = Vec::new();
    for (from, to) in &reach {
        if !to.contains(*from) || told.contains(*from) {
            continue;
        }
        let knot: Vec<&Vec<String>> = to
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(*from)))
            .copied()
            .collect();
        told.extend(knot.iter().copied());
        let inside = knot.iter().flat_map(|one| {
            let next = edges.get(one).into_iter().flatten();
            let next = next.filter(|(next, _)| knot.contains(next));
            next.map(|(next, line)| {
                format!("    {}:{line} imports {}", modules.file(one), modules.file(next))
            })
        });
        let inside: Vec<String> = inside.collect();
        problems.push(format!("files import each other:\n{}", inside.join("\n")));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], floors: &[&[&str]]) -> Vec<String> {
        let texts = files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect();
        complaints(&Modules::read("lib.rs", &texts).expect("a crate"), floors)
    }

    /// A crate in which all is well.
    const ROOT: (&str, &str) = ("lib.rs", "mod ground;\nmod upper;\npub use upper::Upper;");
    const UPPER: (&str, &str) =
        ("upper.rs", "mod inner;\nuse crate::ground::Low;\npub struct Upper(Low, inner::Inner);");
    const GROUND: (&str, &str) = ("ground.rs", "pub struct Low;");
    const INNER: (&str, &str) =
        ("upper/inner.rs", "use crate::ground::Low;\npub struct Inner(Low);");
    const FLOORS: &[&[&str]] = &[&["ground"], &["upper"]];

    #[test]
    fn a_house_in_order() {
        assert_eq!(found(&[ROOT, UPPER, GROUND, INNER], FLOORS), [""; 0]);
        // Whatever tests use.
        let tests = "pub struct Low;\n#[cfg(test)]\nmod tests { use crate::Upper; }";
        assert_eq!(found(&[ROOT, UPPER, ("ground.rs", tests), INNER], FLOORS), [""; 0]);
    }

    #[test]
    fn every_file_has_a_floor() {
        let problems = found(&[ROOT, UPPER, GROUND, INNER], &[&["ground"], &["upper/inner"]]);
        assert_eq!(problems, ["upper.rs: has no floor in the table"]);
        let problems = found(&[ROOT, UPPER, GROUND, INNER], &[&["ground"], &["upper"], &["attic"]]);
        assert_eq!(problems, ["attic: has a floor in the table, but isn't there"]);
        // The longest entry counts.
        let problems =
            found(&[ROOT, UPPER, GROUND, INNER], &[&["ground", "upper"], &["upper/inner"]]);
        assert_eq!(problems, ["upper.rs:3: imports upward, from floor 1 to upper/inner.rs on 2"]);
    }

    #[test]
    fn nothing_imports_upward() {
        let ground = ("ground.rs", "pub struct Low;\npub fn f() { crate::upper::inner::g() }");
        let inner = ("upper/inner.rs", "pub struct Inner;\npub fn g() {}");
        let problems =
            found(&[ROOT, ("upper.rs", "pub mod inner; pub struct Upper;"), ground, inner], FLOORS);
        assert_eq!(problems, ["ground.rs:2: imports upward, from floor 1 to upper/inner.rs on 2"]);
    }

    #[test]
    fn nothing_is_imported_at_the_front_door() {
        let inner = ("upper/inner.rs", "use crate::Low;\npub struct Inner(Low);");
        let root =
            ("lib.rs", "mod ground;\nmod upper;\npub use ground::Low;\npub use upper::Upper;");
        assert_eq!(
            found(&[root, UPPER, GROUND, inner], FLOORS),
            ["upper/inner.rs:1: `crate::Low` is defined in `crate::ground`: import it from there"]
        );
        // Nor in a folder that only passes it on, and none does.
        let upper = ("upper.rs", "mod inner;\npub use crate::ground::Low;\npub struct Upper;");
        let inner = ("upper/inner.rs", "use crate::upper::Low;\npub struct Inner(Low);");
        assert_eq!(
            found(&[ROOT, upper, GROUND, inner], FLOORS),
            [
                "upper.rs:2: re-exports what isn't in its folder",
                "upper/inner.rs:1: `crate::upper::Low` is defined in `crate::ground`: import it from there",
            ]
        );
    }

    #[test]
    fn nothing_lives_in_the_root() {
        let root = ("lib.rs", "mod ground;\nmod upper;\npub struct Attic;");
        let ground = ("ground.rs", "pub struct Low(crate::Attic);");
        assert_eq!(
            found(&[root, UPPER, ground, INNER], FLOORS),
            ["ground.rs:1: `crate::Attic` is defined in the crate's root, above everything"]
        );
    }

    #[test]
    fn re_exports_are_followed() {
        // By way of the folder, which passes on what is in it, two files import each other.
        let upper = (
            "upper.rs",
            "mod one;\nmod two;\npub use one::One;\npub use two::*;\npub struct Upper;",
        );
        let one = ("upper/one.rs", "use crate::upper::Two;\npub struct One(Two);");
        let two = ("upper/two.rs", "use super::One;\npub struct Two(Box<One>);");
        let problems = found(&[ROOT, upper, GROUND, one, two], FLOORS);
        assert_eq!(
            problems,
            ["files import each other:\n    upper/one.rs:1 imports upper/two.rs\n    \
              upper/two.rs:1 imports upper/one.rs"]
        );
    }
}
