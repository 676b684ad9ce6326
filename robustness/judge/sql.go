package judge

import _ "embed"

// EffectsSQL is what a superuser installs after `fencegate migrate up`: the rows that clients write, and the triggers
// that record the order of effects.
//
//go:embed effects.sql
var EffectsSQL string

// GuardedOnceSQL guards the rows as a whole instead of each row: a statement is checked before it and not again after
// it. It runs after EffectsSQL.
const GuardedOnceSQL = `SELECT fence.unprotect('judged.registers'); SELECT fence.protect('judged.registers', under => 'robust/')`
