//! Which PCI devices the software devices pretend to be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::places::PciPlaces;

/// Devices in pairs, as functions of one card.
const PER_CARD: usize = 2;

/// Existing PCI functions for `count` devices, or `None`: there are not enough, and all have to be made up. Mixed, some
/// programs take them for nonsense.
pub(super) fn choose(count: usize, places: &PciPlaces) -> Option<Vec<PathBuf>> {
    let cards = endpoints();
    let free: Vec<&PathBuf> = if places.same_card {
        cards.values().filter(|functions| functions.len() >= PER_CARD).flat_map(|f| &f[..PER_CARD]).collect()
    } else {
        cards.values().map(|functions| &functions[0]).collect()
    };
    let mut free = free.into_iter().filter(|path| !places.pci.iter().any(|(_, named)| named == *path));
    let named = |index: usize| places.pci.iter().find(|(name, _)| name.0 == index).map(|(_, path)| path.clone());
    (0..count).map(|index| named(index).or_else(|| free.next().cloned())).collect()
}

/// All functions that may pass for a NIC, by card; network cards first.
fn endpoints() -> BTreeMap<(bool, String), Vec<PathBuf>> {
    let mut cards: BTreeMap<(bool, String), Vec<PathBuf>> = BTreeMap::new();
    let listed = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    paths.sort_unstable();
    for path in paths {
        let (Some(class), Some(card)) = (class_of(&path), card_of(&path)) else { continue };
        // Bridges, displays, accelerators: a GPU's place is the GPU's.
        if !matches!(class, 0x03 | 0x06 | 0x12) {
            cards.entry((class != 0x02, card)).or_default().push(path);
        }
    }
    cards
}

/// The base class of a PCI function.
fn class_of(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path.join("class")).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok().map(|class| class >> 16)
}

/// The path without the function number.
fn card_of(path: &Path) -> Option<String> {
    path.to_str()?.rsplit_once('.').map(|(card, _)| card.to_owned())
}

/// Address of device `index` among made-up ones.
pub(super) fn made_up(index: usize, is_same_card: bool) -> String {
    let (card, function) = if is_same_card { (index / PER_CARD, index % PER_CARD) } else { (index, 0) };
    format!("{:04x}:{:02x}:00.{function}", 0xfe00, card + 1)
}
