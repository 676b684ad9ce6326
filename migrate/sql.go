package migrate

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"github.com/fencegate/fencegate/migrations"
)

// WriteSQL writes what [Up] would do as plain SQL, its record included, for databases that programs may not change. The
// text is one transaction. from is the state of the database (see migrate status), 0 for none; a value above 0 requires
// a single set. The text checks the state, and changes nothing if it differs. psql -X -v ON_ERROR_STOP=1 applies it.
func WriteSQL(w io.Writer, which Set, from int) error {
	k, err := embedded()
	if err != nil {
		return err
	}
	return k.writeSQL(w, which, from)
}

func (k kit) writeSQL(w io.Writer, which Set, from int) error {
	if from > 0 && which == All {
		return fmt.Errorf("write the SQL from state %d: name one set, fence or objects", from)
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, sqlFileBegin, sqlPlain, sqlTimeouts, lockKey)
	fmt.Fprintf(out, sqlFileMayWrite, sqlUnwritable)
	for _, set := range k {
		if which.has(set.Name) {
			k.writeCheck(out, set, from, set.Needs != nil && !which.has(set.Needs.Set))
		}
	}
	fmt.Fprintf(out, "%s;\n", sqlRecord)
	fmt.Fprintf(out, sqlFileMayWrite, sqlUnwritable)
	for _, set := range k {
		if which.has(set.Name) {
			if err := writeState(out, set, from); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "\n%s;\n", sqlBeginCode)
	for _, set := range k {
		if which.has(set.Name) {
			for _, file := range set.Code.Files {
				fmt.Fprintf(out, "\n%s\n", file.Text)
			}
		}
	}
	fmt.Fprintf(out, "%s;\n\n", sqlEndCode)
	for _, set := range k {
		if which.has(set.Name) {
			fmt.Fprintf(out, sqlFileRecord, set.Name, set.Latest, set.Code.Revision, set.Code.Hash, set.Code.MinProgram, noteOf(set), stateTable(set.Name))
		}
	}
	fmt.Fprintf(out, "%s;\nCOMMIT;\n", sqlPublish)
	return out.Flush()
}

const (
	sqlFileBegin = `-- fencegate's SQL, as one transaction: psql -X -v ON_ERROR_STOP=1 -f FILE DATABASE
SET client_encoding = 'UTF8';
BEGIN;
%s;
DO $$BEGIN PERFORM pg_catalog.set_config(s.name, '0', true) %s; END$$;
DO 'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(%d); END';
`
	// Checks that the database has the state at which the text begins, and no newer code.
	sqlFileCheck = `
DO $check$
DECLARE
  note text := pg_catalog.obj_description(pg_catalog.to_regnamespace('%[1]s'), 'pg_namespace');
  revision integer := (pg_catalog.regexp_match(note, ', code ([0-9]+) '))[1]::integer;
BEGIN
  IF pg_catalog.to_regclass('fencegate.migrations') IS NOT NULL OR note LIKE 'fencegate %%' AND note !~ '^fencegate %[1]s state [0-9]+ %[5]s(,|$)' THEN
    RAISE EXCEPTION 'another baseline made the set %[1]s: %%', coalesce(note, 'fencegate.migrations') USING HINT = 'fencegate migrate status says more';
  ELSIF %[2]s THEN
    RAISE EXCEPTION 'the set %[1]s is not at state %[3]d: %%', coalesce(note, 'the schema has no fencegate note')
      USING HINT = 'fencegate migrate status says what the database has; give that to: fencegate migrate sql --from';
  ELSIF revision > %[4]d THEN
    RAISE EXCEPTION 'the set %[1]s has code %%, which is newer than %[4]d', revision;
  END IF;
END $check$;
`
	sqlFileNeed = `
DO $check$
DECLARE
  note text := pg_catalog.obj_description(pg_catalog.to_regnamespace('%[1]s'), 'pg_namespace');
BEGIN
  IF ((pg_catalog.regexp_match(note, ' state ([0-9]+) %[4]s'))[1]::integer >= %[2]d AND (pg_catalog.regexp_match(note, ', code ([0-9]+) '))[1]::integer >= %[3]d) IS NOT TRUE THEN
    RAISE EXCEPTION 'this needs the set %[1]s at state %[2]d, code %[3]d or newer';
  END IF;
END $check$;
`
	// The record is not touched before this check.
	sqlFileMayWrite = `
DO $check$
DECLARE
  alien record;
BEGIN
  SELECT x.* INTO alien FROM (%s) x;
  IF FOUND THEN
    RAISE EXCEPTION '%% %% (its owner is %%): it is not used, because it could run that role''s code with this login''s rights', alien.object, alien.why, alien.owner;
  END IF;
END $check$;
`
	// What the note says is believed after this check.
	sqlFileMayTrust = `
DO $check$
DECLARE
  alien record;
BEGIN
  SELECT x.* INTO alien FROM (%s) x;
  IF FOUND THEN
    RAISE EXCEPTION '%% %% (its owner is %%): the schema %s is not used, because it could run that role''s code with this login''s rights',
        alien.object, alien.why, coalesce(alien.owner, 'nobody')
      USING HINT = 'If it is not fencegate''s, drop it; if it is, give it and all that is in it to fence_owner.';
  END IF;
END $check$;
`
	sqlFileRecord = `DELETE FROM %[7]s;
INSERT INTO %[7]s (version, dirty) VALUES (%[2]d, false);
INSERT INTO fencegate.code (name, revision, hash, min_program) VALUES ('%[1]s', %[3]d, '%[4]s', %[5]d)
ON CONFLICT (name) DO UPDATE SET revision = EXCLUDED.revision, hash = EXCLUDED.hash, min_program = EXCLUDED.min_program, applied_at = pg_catalog.now();
COMMENT ON SCHEMA %[1]s IS '%[6]s';

`
)

// writeCheck refuses a database that is not at the state from, and one without the set that this one needs.
func (k kit) writeCheck(out io.Writer, set migrations.Set, from int, alone bool) {
	other := fmt.Sprintf("pg_catalog.to_regnamespace('%s') IS NOT NULL", set.Name)
	if from > 0 {
		other = fmt.Sprintf("note IS NULL OR note !~ '^%s(,|$)'", stateNote(set, from))
	}
	fmt.Fprintf(out, sqlFileCheck, set.Name, other, from, set.Code.Revision, set.Baseline)
	if from > 0 {
		fmt.Fprintf(out, sqlFileMayTrust, fmt.Sprintf(sqlForeignIn, set.Name), set.Name)
	}
	if alone {
		fmt.Fprintf(out, sqlFileNeed, set.Needs.Set, set.Needs.State, set.Needs.Revision, k.set(set.Needs.Set).Baseline)
		fmt.Fprintf(out, sqlFileMayTrust, fmt.Sprintf(sqlForeignIn, set.Needs.Set), set.Needs.Set)
	}
}

// writeState writes the steps of a set's state that follow from.
func writeState(out io.Writer, set migrations.Set, from int) error {
	if from > set.Latest {
		return fmt.Errorf("the set %s has state %d at most", set.Name, set.Latest)
	}
	fmt.Fprintf(out, "\n"+sqlStateTable+";\n", stateTable(set.Name))
	steps, err := fs.Glob(set.State, "*.up.sql")
	if err != nil {
		return err
	}
	for _, step := range steps { // in the order of their names
		if version, err := strconv.Atoi(step[:6]); err != nil || version <= from {
			continue
		}
		text, err := fs.ReadFile(set.State, step)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s\n", text)
	}
	return nil
}
