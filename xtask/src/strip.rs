//! Drops from the kernel object what neither the loader nor the verifier reads.

use anyhow::{Context, Result};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

/// Removes the DWARF sections, their relocations and their symbols. BTF stays, line information included.
///
/// # Errors
/// `object` is not a well-formed ELF file.
pub fn strip_dwarf(object: &[u8]) -> Result<Vec<u8>> {
    let mut elf = Builder::read(object).context("the linked kernel object")?;
    for section in &mut elf.sections {
        let name = section.name.to_string();
        if name.starts_with(".debug_") || name.starts_with(".rel.debug_") {
            section.delete = true;
        }
        // Relocations of BTF serve a linker only, and refer to symbols that go.
        if matches!(section.data, SectionData::Relocation(_)) && name.starts_with(".rel.BTF") {
            section.delete = true;
        }
    }
    elf.delete_orphans();
    // LLVM keeps symbol and section names in one table; the builder writes one table each.
    if !elf
        .sections
        .iter()
        .any(|section| matches!(section.data, SectionData::SectionString))
    {
        let names = elf.sections.add();
        names.name = ".shstrtab".into();
        names.sh_type = SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    elf.write(&mut stripped)
        .context("stripping the kernel object")?;
    Ok(stripped)
}
