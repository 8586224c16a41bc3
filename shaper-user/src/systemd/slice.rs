//! Slices: the part of the cgroup tree that systemd makes for a class or an account (systemd.slice(5)).
//!
//! A slice's name tells its place: `shaper-bulk-acme.slice` lies in `shaper-bulk.slice`, and that in `shaper.slice`.

use shaper_common::Class;

const SLICE: &str = ".slice";

/// The name of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice(String);

impl Slice {
    /// Where a class lives unless told otherwise.
    pub fn of_class(class: Class) -> Self {
        Self(format!("shaper-{class}{SLICE}"))
    }

    /// The slice whose cgroup this is; `None`: it is none.
    pub fn at(cgroup: &str) -> Option<Self> {
        let name = cgroup.rsplit('/').next()?;
        let is_slice = name.len() > SLICE.len() && name.ends_with(SLICE) && !name.starts_with('-');
        is_slice.then(|| Self(name.to_owned()))
    }

    /// The slice of an account inside this one.
    pub fn of_account(&self, account: &str) -> Self {
        Self(format!("{}-{}{SLICE}", self.stem(), escaped(account)))
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Its cgroup, from the top of systemd's tree: `shaper.slice/shaper-bulk.slice`.
    pub fn cgroup(&self) -> String {
        let stem = self.stem();
        let parents = stem.match_indices('-').map(|(dash, _)| &stem[..dash]);
        let path: Vec<_> = parents
            .chain([stem])
            .map(|stem| format!("{stem}{SLICE}"))
            .collect();
        path.join("/")
    }

    fn stem(&self) -> &str {
        self.0.strip_suffix(SLICE).unwrap_or(&self.0)
    }
}

/// The account that a child cgroup of a class cgroup stands for; `None`: for none. A scope in which `shaper exec` runs a
/// command holds a process of the class, not a tenant.
pub fn account_of(class_cgroup: &str, child: &str) -> Option<String> {
    if super::scope::is_ours(child) {
        return None;
    }
    let of_slice = Slice::at(class_cgroup).and_then(|class| {
        let account = child.strip_prefix(class.stem())?.strip_prefix('-')?;
        unescaped(account.strip_suffix(SLICE)?)
    });
    Some(of_slice.unwrap_or_else(|| child.to_owned()))
}

/// As a part of a unit's name: a dash would be a further level. Other bytes than letters, digits, `:`, `_` and `.` become
/// `\xNN` (`unit_name_escape`, src/basic/unit-name.c).
fn escaped(account: &str) -> String {
    let mut name = String::new();
    for (index, byte) in account.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'.');
        if is_plain && !(index == 0 && byte == b'.') {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("\\x{byte:02x}"));
        }
    }
    name
}

/// `None`: not written by [`escaped`].
fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name;
    while let Some((plain, escape)) = rest.split_once("\\x") {
        bytes.extend(plain.bytes());
        bytes.push(u8::from_str_radix(escape.get(..2)?, 16).ok()?);
        rest = &escape[2..];
    }
    bytes.extend(rest.bytes());
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slice_lies_where_its_name_says() {
        let bulk = Slice::of_class(Class::Bulk);
        assert_eq!(bulk.name(), "shaper-bulk.slice");
        assert_eq!(bulk.cgroup(), "shaper.slice/shaper-bulk.slice");
        let acme = bulk.of_account("acme");
        assert_eq!(
            acme.cgroup(),
            "shaper.slice/shaper-bulk.slice/shaper-bulk-acme.slice"
        );
        let team = bulk.of_account("my-team");
        assert_eq!(team.name(), "shaper-bulk-my\\x2dteam.slice");
        assert_eq!(Slice::at(&bulk.cgroup()), Some(bulk));
        assert_eq!(Slice::at("agents.slice").unwrap().cgroup(), "agents.slice");
        for other in [
            "shaper/bulk",
            "system.slice/docker-1.scope",
            ".slice",
            "-.slice",
        ] {
            assert_eq!(Slice::at(other), None, "{other}");
        }
    }

    #[test]
    fn a_child_of_a_class_is_an_account_unless_a_command_runs_in_it() {
        let class = "shaper.slice/shaper-bulk.slice";
        for (class, child, account) in [
            (class, "shaper-bulk-acme.slice", Some("acme")),
            (class, "shaper-bulk-my\\x2dteam.slice", Some("my-team")),
            (class, "shaper-4711-1.scope", None),
            (class, "docker-1.scope", Some("docker-1.scope")),
            (class, "other.slice", Some("other.slice")),
            ("shaper/bulk", "acme", Some("acme")),
            ("shaper/bulk", "acme.slice", Some("acme.slice")),
        ] {
            assert_eq!(account_of(class, child).as_deref(), account, "{child}");
        }
    }

    proptest! {
        /// Any name that a cgroup may have comes back.
        #[test]
        fn an_account_is_known_by_its_slice(account in "[^/\0]{1,40}") {
            let bulk = Slice::of_class(Class::Bulk);
            let slice = bulk.of_account(&account);
            prop_assert_eq!(slice.cgroup().matches('/').count(), 2);
            prop_assert_eq!(account_of(&bulk.cgroup(), slice.name()), Some(account));
        }
    }
}
