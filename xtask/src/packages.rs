//! Checks what the workspace takes from others: under which licences, from where, in how many
//! versions, and which faults of it are known. And whether its own crates can be packaged.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use spdx::{Expression, ParseMode};

use crate::shell::{cargo, program};

/// Licences under which a dependency may be used: none asks more of our users than to name it,
/// except that changes of its own files are published (MPL-2.0).
const LICENCES: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "LLVM-exception",
];

/// Packages whose licence stands in a file only, and which one it is.
const IN_A_FILE: [(&str, &str); 1] = [("cfg_block", "Apache-2.0")];

/// Where packages come from, apart from the workspace.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// So many packages are there in several versions, because others ask for them. A dependency that
/// would raise the number is worth a look: each version is compiled.
const DOUBLED: usize = 33;

/// Advisories that don't concern us, and why.
const UNCONCERNED: [(&str, &str); 0] = [];

/// The answer of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for packages of the workspace.
    source: Option<String>,
    /// An empty list for packages that aren't published.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// As in `^1.2`.
    req: String,
}

/// Checks all of it.
pub(crate) fn check() -> Result<()> {
    let host = program("rustc").args(["-vV"]).read()?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("no host")?;
    let metadata = cargo(["metadata", "--locked", "--format-version=1", "--filter-platform", host]);
    let metadata: Metadata = serde_json::from_str(&metadata.read()?)?;
    let packages = &metadata.packages;
    let problems = [licences(packages), sources(packages), versions(packages)].concat();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    eprintln!("{} packages have licences and sources that are allowed", packages.len());
    match asked(packages) {
        Ok(answer) => {
            let found = advisories(packages, &answer)?;
            if !found.is_empty() {
                bail!("{}", found.join("\n"));
            }
            eprintln!("no advisory concerns them");
        }
        Err(error) => eprintln!("advisories are NOT CHECKED: {error:#}"),
    }
    package(packages)
}

/// Packs what will be published, as it will be.
fn package(packages: &[Package]) -> Result<()> {
    let unpublished = |package: &&Package| package.publish.as_ref().is_some_and(Vec::is_empty);
    let own = packages.iter().filter(|package| package.source.is_none());
    let excluded = own.filter(unpublished).flat_map(|package| ["--exclude", &package.name]);
    let pack = ["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty", "--locked"];
    cargo(pack).args(excluded).run()
}

fn licences(packages: &[Package]) -> Vec<String> {
    let complaint = |package: &Package| {
        let Package { name, version, license, .. } = package;
        let of_file = IN_A_FILE.iter().find(|(listed, _)| listed == name);
        let Some(text) = license.as_deref().or(of_file.map(|(_, licence)| *licence)) else {
            return Some(format!("{name} {version} names no licence: look, and list it"));
        };
        let is_allowed = |requirement: &spdx::LicenseReq| {
            let names = requirement.to_string();
            names.split(" WITH ").all(|name| LICENCES.contains(&name))
        };
        match Expression::parse_mode(text, ParseMode::LAX) {
            Ok(terms) if terms.evaluate(is_allowed) => None,
            Ok(_) => {
                Some(format!("{name} {version} is licensed under {text}, which isn't allowed"))
            }
            Err(error) => Some(format!("{name} {version}: {error}")),
        }
    };
    packages.iter().filter_map(complaint).collect()
}

fn sources(packages: &[Package]) -> Vec<String> {
    let strays = packages.iter().filter_map(|package| {
        let source = package.source.as_ref().filter(|source| *source != REGISTRY)?;
        Some(format!("{} {} comes from {source}", package.name, package.version))
    });
    strays.collect()
}

fn versions(packages: &[Package]) -> Vec<String> {
    let mut all: BTreeMap<&str, BTreeSet<Version>> = BTreeMap::new();
    for package in packages {
        all.entry(&package.name).or_default().insert(version(&package.version));
    }
    all.retain(|_, versions| versions.len() > 1);
    let mut problems = Vec::new();
    // Whoever asks for an older version than others do makes the double.
    for own in packages.iter().filter(|package| package.source.is_none()) {
        for Dependency { name, req } in &own.dependencies {
            let newest = all.get(&**name).and_then(BTreeSet::last);
            let asked = version(req.trim_start_matches(['^', '=', '~', ' ']));
            if newest.is_some_and(|newest| !is_compatible(&asked, newest)) {
                problems
                    .push(format!("{} asks for {name} {req}, others for a newer one", own.name));
            }
        }
    }
    if all.len() > DOUBLED {
        let names: Vec<&str> = all.keys().copied().collect();
        problems.push(format!(
            "{} packages are there in several versions, up to now {DOUBLED}: {}",
            all.len(),
            names.join(", ")
        ));
    }
    problems
}

type Version = Vec<u64>;

/// The numbers of a version, without what stands behind them.
fn version(text: &str) -> Version {
    let numbers = text.split(['-', '+']).next().unwrap_or_default().split('.');
    numbers.map_while(|number| number.parse().ok()).collect()
}

/// Whether Cargo would take `found` for `asked`: they agree up to the first number that isn't zero.
fn is_compatible(asked: &[u64], found: &[u64]) -> bool {
    let counts = asked.iter().position(|number| *number != 0).map_or(asked.len(), |at| at + 1);
    asked.iter().zip(found).take(counts).all(|(a, b)| a == b)
}

/// Asks the database of known faults, which has RustSec's.
fn asked(packages: &[Package]) -> Result<String> {
    let foreign = packages.iter().filter(|package| package.source.is_some());
    let queries: Vec<Value> = foreign
        .map(|Package { name, version, .. }| {
            json!({ "package": { "name": name, "ecosystem": "crates.io" }, "version": version })
        })
        .collect();
    let folder = crate::setup::target();
    std::fs::create_dir_all(&folder)?;
    let question = folder.join("advisories.json");
    std::fs::write(&question, json!({ "queries": queries }).to_string())?;
    let data = format!("@{}", question.display());
    let ask = ["--fail", "--silent", "--show-error", "--max-time", "30", "--data-binary", &data];
    program("curl").args(ask).args(["https://api.osv.dev/v1/querybatch"]).read()
}

/// Advisories in the database's answer, which has one result for each foreign package.
fn advisories(packages: &[Package], answer: &str) -> Result<Vec<String>> {
    let answer: Value = serde_json::from_str(answer)?;
    let results = answer["results"].as_array().context("no results")?;
    let foreign: Vec<&Package> = packages.iter().filter(|p| p.source.is_some()).collect();
    if results.len() != foreign.len() {
        bail!("{} results for {} packages", results.len(), foreign.len());
    }
    let mut found = Vec::new();
    for (package, result) in foreign.into_iter().zip(results) {
        for known in result["vulns"].as_array().into_iter().flatten() {
            let id = known["id"].as_str().unwrap_or("unnamed");
            if !UNCONCERNED.iter().any(|(listed, _)| *listed == id) {
                let Package { name, version, .. } = package;
                found.push(format!("{name} {version}: https://osv.dev/vulnerability/{id}"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
            publish: None,
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn licences_must_be_allowed() {
        let of = |licence| licences(&[package("a", "1.0.0", licence, Some(REGISTRY))]).len();
        for allowed in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "Apache-2.0 WITH LLVM-exception"]
        {
            assert_eq!(of(Some(allowed)), 0, "{allowed}");
        }
        for refused in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 WITH Bison-exception-2.2", "x y"]
        {
            assert_eq!(of(Some(refused)), 1, "{refused}");
        }
        assert_eq!(of(None), 1);
        assert_eq!(licences(&[package("cfg_block", "1.0.0", None, None)]), [""; 0]);
    }

    #[test]
    fn sources_must_be_the_registry() {
        let git = package("a", "1.0.0", None, Some("git+https://example.org/a"));
        assert_eq!(sources(&[git]), ["a 1.0.0 comes from git+https://example.org/a"]);
        let right =
            [package("a", "1.0.0", None, Some(REGISTRY)), package("own", "1.0.0", None, None)];
        assert_eq!(sources(&right), [""; 0]);
    }

    #[test]
    fn no_double_is_ours() {
        let own = |req: &str| Package {
            dependencies: vec![Dependency { name: "a".to_owned(), req: req.to_owned() }],
            ..package("own", "0.1.0", None, None)
        };
        let of = |req, others: &[&str]| {
            let others = others.iter().map(|version| package("a", version, None, Some(REGISTRY)));
            versions(&others.chain([own(req)]).collect::<Vec<_>>())
        };
        assert_eq!(of("^2", &["1.0.9", "2.3.4"]), [""; 0]);
        assert_eq!(of("^0.10.2", &["0.9.1", "0.10.4"]), [""; 0]);
        assert_eq!(of("^1.0", &["1.2.0"]), [""; 0]);
        assert_eq!(
            of("^1.2", &["1.2.0", "2.0.1"]),
            ["own asks for a ^1.2, others for a newer one"]
        );
        assert_eq!(of("^0.9", &["0.9.1", "0.10.4"]).len(), 1);
        let many: Vec<Package> = (0..2 * (DOUBLED + 1))
            .map(|n| package(&format!("p{}", n / 2), &format!("{n}.0.0"), None, Some(REGISTRY)))
            .collect();
        assert_eq!(versions(&many[2..]), [""; 0]);
        assert_eq!(versions(&many).len(), 1);
    }

    #[test]
    fn advisories_are_told() {
        let packages =
            [package("own", "1.0.0", None, None), package("a", "1.0.0", None, Some(REGISTRY))];
        let none = advisories(&packages, r#"{ "results": [{}] }"#).expect("an answer");
        assert_eq!(none, [""; 0]);
        let answer = r#"{ "results": [{ "vulns": [{ "id": "RUSTSEC-2020-0001" }] }] }"#;
        let found = advisories(&packages, answer).expect("an answer");
        assert_eq!(found, ["a 1.0.0: https://osv.dev/vulnerability/RUSTSEC-2020-0001"]);
        assert!(advisories(&packages, r#"{ "results": [] }"#).is_err());
        assert!(advisories(&packages, "<html>").is_err());
    }
}
