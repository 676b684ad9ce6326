package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
)

// These tests need a database with the fence: make examples runs them, as does
//
//	go run ./cmd/fencegate dev --ephemeral -- go test -C examples/orm -race .

// Customer and Invoice are associated models, the second one with hooks.
type Customer struct {
	ID       int64 `gorm:"primaryKey"`
	Name     string
	Invoices []Invoice
}

type Invoice struct {
	ID         int64 `gorm:"primaryKey"`
	CustomerID int64
	Total      int64
	SavedBy    string `gorm:"->:false;<-:create"`
}

// BeforeCreate reads, in the same transaction, which grant it presents.
func (i *Invoice) BeforeCreate(tx *gorm.DB) error {
	return tx.Raw(effective).Scan(&i.SavedBy).Error
}

const effective = `SELECT concat(current_setting('fence.resource', true), '#', split_part(current_setting('fence.token', true), '.', 1))`

// shop is one test's schema, whose tables need grants below shop/.
type shop struct {
	db     *sql.DB
	orm    *gorm.DB
	fences *sqlfence.Fence
	prefix string
}

func open(t *testing.T, config *gorm.Config) shop {
	t.Helper()
	if os.Getenv("DATABASE_URL") == "" {
		t.Fatal("DATABASE_URL is not set; run: go run ./cmd/fencegate dev --ephemeral -- go test -C examples/orm .")
	}
	name := strings.ToLower(strings.NewReplacer("/", "_", "=", "_").Replace(t.Name()))
	s := shop{prefix: name + "/"}
	pool, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	pool.RuntimeParams["search_path"] = name
	s.db = pgxsql.OpenDB(*pool)
	t.Cleanup(func() { _ = s.db.Close() })
	s.db.SetMaxOpenConns(4)
	arming, err := sql.Open("pgx", os.Getenv("ARMING_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arming.Close() })
	s.fences = sqlfence.New(arming)
	s.orm, err = gorm.Open(postgres.New(postgres.Config{Conn: s.db}), config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), `CREATE SCHEMA `+name); err != nil {
		t.Fatal(err)
	}
	if err := s.orm.AutoMigrate(&Customer{}, &Invoice{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), `SELECT fence.protect_schema($1::text::regnamespace, under => $2)`, name, s.prefix); err != nil {
		t.Fatal(err)
	}
	return s
}

// acquire arms a grant, as acquiring a lease does, and returns a context that carries it.
func (s shop) acquire(t *testing.T, name string, token fence.Token) (context.Context, fence.Grant) {
	t.Helper()
	g := fence.Grant{Resource: s.prefix + name, Token: token, Seal: fence.NewSeal()}
	if err := s.fences.Arm(t.Context(), fence.Arming{Resource: g.Resource, Token: token, SealHash: g.Seal.Hash()}); err != nil {
		t.Fatal(err)
	}
	return sqlfence.WithGrant(t.Context(), g), g
}

func (s shop) rows(t *testing.T) (n int64) {
	t.Helper()
	if err := s.db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM customers) + (SELECT count(*) FROM invoices)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// works lists typical uses of GORM, and how many rows each adds.
var works = map[string]struct {
	adds int64
	do   func(orm *gorm.DB) error
}{
	"create": {1, func(orm *gorm.DB) error { return orm.Create(&Customer{Name: "a"}).Error }},
	"batches": {7, func(orm *gorm.DB) error {
		customers := make([]Customer, 7)
		return orm.CreateInBatches(customers, 3).Error
	}},
	"associations and hooks": {3, func(orm *gorm.DB) error {
		customer := Customer{Name: "b", Invoices: []Invoice{{Total: 1}, {Total: 2}}}
		if err := orm.Create(&customer).Error; err != nil {
			return err
		}
		var saved []string
		if err := orm.Raw(`SELECT saved_by FROM invoices WHERE customer_id = ?`, customer.ID).Scan(&saved).Error; err != nil {
			return err
		}
		for _, by := range saved {
			if want := sqlfence.Grants(orm.Statement.Context); len(want) != 1 || by != want[0].String() {
				return fmt.Errorf("a hook ran under %q", by)
			}
		}
		return nil
	}},
	"nested transactions": {2, func(orm *gorm.DB) error {
		return orm.Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(&Customer{Name: "outer"}).Error; err != nil {
				return err
			}
			undone := errors.New("undone")
			if err := tx.Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Create(&Customer{Name: "undone"}).Error, undone)
			}); !errors.Is(err, undone) {
				return err
			}
			return tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Customer{Name: "inner"}).Error })
		})
	}},
	"without a transaction": {1, func(orm *gorm.DB) error {
		return orm.Session(&gorm.Session{SkipDefaultTransaction: true}).Create(&Customer{Name: "c"}).Error
	}},
	"prepared": {1, func(orm *gorm.DB) error {
		return orm.Session(&gorm.Session{PrepareStmt: true}).Create(&Customer{Name: "d"}).Error
	}},
	"raw SQL": {1, func(orm *gorm.DB) error { return orm.Exec(`INSERT INTO customers (name) VALUES (?)`, "e").Error }},
	"update and upsert": {1, func(orm *gorm.DB) error {
		customer := Customer{Name: "f"}
		if err := orm.Create(&customer).Error; err != nil {
			return err
		}
		customer.Name = "g"
		return errors.Join(orm.Save(&customer).Error, orm.Model(&customer).Update("name", "h").Error)
	}},
}

func TestGORMWritesUnderTheContextsGrant(t *testing.T) {
	t.Parallel()
	s := open(t, &gorm.Config{})
	stale, _ := s.acquire(t, "a", 1)
	ctx, _ := s.acquire(t, "a", 2)
	for name, work := range works {
		before := s.rows(t)
		if err := work.do(s.orm.WithContext(ctx)); err != nil || s.rows(t) != before+work.adds {
			t.Errorf("%s: %v, %d rows more", name, err, s.rows(t)-before)
		}
		before = s.rows(t)
		if err := work.do(s.orm.WithContext(stale)); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s by a stale worker: %v", name, err)
		}
		if err := work.do(s.orm.WithContext(t.Context())); !errors.Is(err, fence.ErrNoGrant) {
			t.Errorf("%s without a grant: %v", name, err)
		}
		if n := s.rows(t); n != before {
			t.Errorf("%s: %d rows were written without effect", name, n-before)
		}
	}
}

func TestSqlxWritesUnderTheContextsGrant(t *testing.T) {
	t.Parallel()
	s := open(t, &gorm.Config{})
	db := sqlx.NewDb(s.db, "pgx")
	stale, _ := s.acquire(t, "a", 1)
	ctx, _ := s.acquire(t, "a", 2)
	customer := Customer{Name: "a"}
	for name, do := range map[string]func(ctx context.Context) error{
		"named": func(ctx context.Context) error {
			_, err := db.NamedExecContext(ctx, `INSERT INTO customers (name) VALUES (:name)`, customer)
			return err
		},
		"batch": func(ctx context.Context) error {
			_, err := db.NamedExecContext(ctx, `INSERT INTO customers (name) VALUES (:name)`, []Customer{customer})
			return err
		},
		"returning": func(ctx context.Context) error {
			var id int64
			return db.GetContext(ctx, &id, `INSERT INTO customers (name) VALUES ('b') RETURNING id`)
		},
		"transaction": func(ctx context.Context) error {
			tx, err := db.BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.NamedExec(`INSERT INTO customers (name) VALUES (:name)`, customer); err != nil {
				return err
			}
			return tx.Commit()
		},
		"prepared": func(ctx context.Context) error {
			stmt, err := db.PrepareNamedContext(context.WithoutCancel(ctx), `INSERT INTO customers (name) VALUES (:name)`)
			if err != nil {
				return err
			}
			defer func() { _ = stmt.Close() }()
			_, err = stmt.ExecContext(ctx, customer)
			return err
		},
	} {
		before := s.rows(t)
		if err := do(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := do(stale); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s by a stale worker: %v", name, err)
		}
		if err := do(t.Context()); !errors.Is(err, fence.ErrNoGrant) {
			t.Errorf("%s without a grant: %v", name, err)
		}
		if n := s.rows(t) - before; n != 1 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
}

// Workers with their own grants, and workers without, share GORM's pool of four connections.
func TestGORMsPoolMixesNoGrants(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*gorm.Config{
		"default": {}, "prepared": {PrepareStmt: true}, "bare": {SkipDefaultTransaction: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, config)
			var all sync.WaitGroup
			for worker := range 8 {
				ctx, want := t.Context(), "#"
				if worker%4 != 3 {
					granted, g := s.acquire(t, fmt.Sprint(worker), fence.Token(worker+1))
					ctx, want = granted, g.String()
				}
				all.Go(func() {
					for i := range 15 {
						orm := s.orm.WithContext(ctx)
						switch i % 5 {
						case 0: // fails
							_ = orm.Exec(`SELECT 1/0`).Error
						case 1: // rolls back in the middle
							cancelled, cancel := context.WithCancel(ctx)
							_ = s.orm.WithContext(cancelled).Transaction(func(tx *gorm.DB) error {
								cancel()
								return tx.Create(&Customer{Name: "never"}).Error
							})
						}
						var got string
						if err := orm.Raw(effective).Scan(&got).Error; err != nil || got != want {
							t.Errorf("%s instead of %s: %v", got, want, err)
						}
						customer := Customer{Invoices: []Invoice{{Total: int64(i)}}}
						err := orm.Create(&customer).Error
						if by := customer.Invoices[0].SavedBy; want != "#" && (err != nil || by != want) {
							t.Errorf("saved under %q instead of %s: %v", by, want, err)
						}
						if want == "#" && !errors.Is(err, fence.ErrNoGrant) {
							t.Errorf("saved without a grant: %v", err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}
