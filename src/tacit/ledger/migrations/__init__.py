"""How ledgers of earlier versions become ledgers of this one."""
