//! Reads a Rust file as far as the rules need it: which modules it declares, which items it
//! defines, which names it imports or re-exports, and which paths its code mentions. What is
//! compiled for tests only is left out. Tokens come from `proc-macro2`; nothing is expanded.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A file as it reads.
#[derive(Default, Debug)]
pub(super) struct File {
    /// `mod name;`, and whether it is there for tests only.
    pub(super) modules: Vec<(String, bool)>,
    /// Names of the items in it, macros included.
    pub(super) items: Vec<String>,
    pub(super) uses: Vec<Use>,
    /// Other paths of at least two names in its code.
    pub(super) paths: Vec<Mention>,
}

/// A name that a `use` brings in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) path: Mention,
    /// Under which name; `None` for `*`.
    pub(super) name: Option<String>,
    /// Others can name it from here.
    pub(super) is_public: bool,
}

/// A path and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mention {
    pub(super) segments: Vec<String>,
    pub(super) line: usize,
}

pub(super) fn read(text: &str) -> Result<File> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{error}"))?;
    let mut file = File::default();
    file.items(tokens, true);
    Ok(file)
}

impl File {
    /// Reads a list of items; `is_top` if they are the file's own.
    fn items(&mut self, tokens: TokenStream, is_top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let (item, after) = split_item(rest);
            rest = after;
            self.item(item, is_top);
        }
    }

    fn item(&mut self, mut item: &[TokenTree], is_top: bool) {
        let mut is_test = false;
        // Attributes, inner ones too.
        while let [TokenTree::Punct(hash), after @ ..] = item
            && hash.as_char() == '#'
        {
            let after = match after {
                [TokenTree::Punct(bang), after @ ..] if bang.as_char() == '!' => after,
                _ => after,
            };
            let [TokenTree::Group(attribute), after @ ..] = after else { break };
            is_test |= is_test_attribute(&attribute.stream());
            item = after;
        }
        let mut is_public = false;
        if let [first, after @ ..] = item
            && is_word(first, "pub")
        {
            is_public = true;
            item = match after {
                [TokenTree::Group(scope), after @ ..]
                    if scope.delimiter() == Delimiter::Parenthesis =>
                {
                    after
                }
                _ => after,
            };
        }
        match item {
            [word, TokenTree::Ident(name), rest @ ..] if is_word(word, "mod") => match rest {
                [TokenTree::Group(body), ..] if !is_test => self.items(body.stream(), false),
                [TokenTree::Group(_), ..] => {}
                _ if is_top => self.modules.push((name.to_string(), is_test)),
                _ => {}
            },
            _ if is_test => {}
            [word, tree @ ..] if is_word(word, "use") => {
                let mut uses = Vec::new();
                use_tree(tree, &mut Vec::new(), is_public, &mut uses);
                if is_top {
                    self.uses.extend(uses);
                } else {
                    self.paths.extend(uses.into_iter().map(|one| one.path));
                }
            }
            _ => {
                if is_top {
                    self.items.extend(defined(item));
                }
                self.mentions(item);
            }
        }
    }

    /// Finds paths in code, `use` in functions included.
    fn mentions(&mut self, tokens: &[TokenTree]) {
        let mut place = 0;
        while place < tokens.len() {
            match &tokens[place] {
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.mentions(&inner);
                    place += 1;
                }
                TokenTree::Ident(word) if *word == "use" => {
                    let end = tokens[place..].iter().position(|t| is_punct(t, ';'));
                    let end = end.map_or(tokens.len(), |end| place + end);
                    let mut uses = Vec::new();
                    use_tree(&tokens[place + 1..end], &mut Vec::new(), false, &mut uses);
                    self.paths.extend(uses.into_iter().map(|one| one.path));
                    place = end;
                }
                TokenTree::Ident(first) => {
                    let mut segments = vec![first.to_string()];
                    let line = first.span().start().line;
                    place += 1;
                    while let [a, b, TokenTree::Ident(next), ..] = &tokens[place..]
                        && is_punct(a, ':')
                        && is_punct(b, ':')
                    {
                        segments.push(next.to_string());
                        place += 3;
                    }
                    if segments.len() > 1 {
                        self.paths.push(Mention { segments, line });
                    }
                }
                _ => place += 1,
            }
        }
    }
}

/// The first item and what comes after it: an item ends with `;`, or with braces unless it is a
/// constant, a `use` or the like, whose `;` comes after them.
fn split_item(tokens: &[TokenTree]) -> (&[TokenTree], &[TokenTree]) {
    let is_fn = |token: Option<&TokenTree>| token.is_some_and(|token| is_word(token, "fn"));
    let (mut kind, mut before) = (None, None);
    for (place, token) in tokens.iter().enumerate() {
        let is_attribute =
            before.is_some_and(|before| is_punct(before, '#') || is_punct(before, '!'));
        if let TokenTree::Ident(word) = token
            && *word != "pub"
            && kind.is_none()
        {
            let has_braces = is_fn(tokens.get(place + 1))
                || !["use", "const", "static", "type"].iter().any(|known| word == known);
            kind = Some(has_braces);
        }
        let is_end = match token {
            TokenTree::Group(group) => {
                group.delimiter() == Delimiter::Brace && kind != Some(false) && !is_attribute
            }
            other => is_punct(other, ';'),
        };
        if is_end {
            return tokens.split_at(place + 1);
        }
        before = Some(token);
    }
    (tokens, &[])
}

/// The name that an item defines.
fn defined(item: &[TokenTree]) -> Option<String> {
    let kinds = ["struct", "enum", "trait", "fn", "const", "static", "type", "union"];
    let words = item.iter().take(6);
    for (place, word) in words.enumerate() {
        let next = item.get(place + 1);
        if is_word(word, "macro_rules") {
            let Some(TokenTree::Ident(name)) = item.get(place + 2) else { return None };
            return Some(name.to_string());
        }
        if let Some(TokenTree::Ident(name)) = next
            && kinds.iter().any(|kind| is_word(word, kind))
            && !kinds.iter().any(|kind| name == kind)
        {
            return Some(name.to_string());
        }
        if is_word(word, "impl") {
            return None;
        }
    }
    None
}

/// `cfg(test)`, also among others that must hold.
fn is_test_attribute(attribute: &TokenStream) -> bool {
    let mut tokens = attribute.clone().into_iter();
    let is_cfg = tokens.next().is_some_and(|first| is_word(&first, "cfg"));
    let Some(TokenTree::Group(condition)) = tokens.next() else { return false };
    let condition: Vec<TokenTree> = condition.stream().into_iter().collect();
    is_cfg
        && match &condition[..] {
            [one] => is_word(one, "test"),
            [all, TokenTree::Group(list)] if is_word(all, "all") => {
                list.stream().into_iter().any(|one| is_word(&one, "test"))
            }
            _ => false,
        }
}

fn use_tree(tokens: &[TokenTree], prefix: &mut Vec<String>, is_public: bool, to: &mut Vec<Use>) {
    let depth = prefix.len();
    let mut line = 0;
    let mut rest = tokens;
    loop {
        match rest {
            [TokenTree::Punct(colon), after @ ..] if colon.as_char() == ':' => rest = after,
            [TokenTree::Ident(word), TokenTree::Ident(name), ..] if *word == "as" => {
                let path = Mention { segments: prefix.clone(), line };
                to.push(Use { path, name: Some(name.to_string()), is_public });
                break;
            }
            [TokenTree::Ident(name), after @ ..] => {
                line = name.span().start().line;
                prefix.push(name.to_string());
                rest = after;
            }
            [TokenTree::Group(group), ..] => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for one in inner.split(|token| is_punct(token, ',')) {
                    if !one.is_empty() {
                        use_tree(one, prefix, is_public, to);
                    }
                }
                break;
            }
            [TokenTree::Punct(star), ..] if star.as_char() == '*' => {
                line = star.span().start().line;
                let path = Mention { segments: prefix.clone(), line };
                to.push(Use { path, name: None, is_public });
                break;
            }
            _ => {
                let mut segments = prefix.clone();
                let is_itself = segments.last().is_some_and(|last| last == "self");
                if is_itself && segments.len() > 1 {
                    segments.pop();
                }
                let name = segments.last().cloned();
                to.push(Use { path: Mention { segments, line }, name, is_public });
                break;
            }
        }
    }
    prefix.truncate(depth);
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(mentions: impl IntoIterator<Item = Mention>) -> Vec<String> {
        mentions.into_iter().map(|m| format!("{} {}", m.line, m.segments.join("::"))).collect()
    }

    #[test]
    fn files_are_read() {
        let text = "//! Head with `crate::not_code`.\n\
            mod plain;\n\
            pub(crate) mod open;\n\
            #[cfg(test)]\nmod tests;\n\
            use crate::a::{B, c::{self, D as E}, *};\n\
            pub use self::plain::Thing;\n\
            #[cfg(all(test, unix))]\nuse crate::tests_only::X;\n\
            pub(crate) const fn f(x: crate::g::G) -> [u8; 2] { super::h::i(\"crate::text\") }\n\
            const J: K = K { l: 'l' };\n\
            impl crate::m::N for O { fn p() { use crate::q::R; } }\n\
            macro_rules! s { () => { $crate::t::u() } }\n\
            pub(crate) use s;\n\
            #[cfg(test)]\nmod more { use crate::v::W; }\n";
        let file = read(text).expect("Rust");
        let modules: Vec<_> = file.modules.iter().map(|(name, test)| (&**name, *test)).collect();
        assert_eq!(modules, [("plain", false), ("open", false), ("tests", true)]);
        assert_eq!(file.items, ["f", "J", "s"]);
        let uses = file.uses.iter().map(|one| {
            let name = one.name.as_deref().unwrap_or("*");
            format!(
                "{} as {name}{}",
                one.path.segments.join("::"),
                if one.is_public { "!" } else { "" }
            )
        });
        let expected = [
            "crate::a::B as B",
            "crate::a::c as c",
            "crate::a::c::D as E",
            "crate::a as *",
            "self::plain::Thing as Thing!",
            "s as s!",
        ];
        assert_eq!(uses.collect::<Vec<_>>(), expected);
        let expected = [
            "10 crate::g::G",
            "10 super::h::i",
            "12 crate::m::N",
            "12 crate::q::R",
            "13 crate::t::u",
        ];
        assert_eq!(paths(file.paths), expected);
        assert!(read("fn f() { (").is_err());
    }
}
