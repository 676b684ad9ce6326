// Command gopool runs the story of ../common.py with pgxpool, or with database/sql over pgx.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// pool is the part of a pool that the story uses.
type pool struct {
	name  string
	read  func(ctx context.Context, sql string) (balance int, err error)
	write func(ctx context.Context, sql string) error
}

func main() {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(os.Getenv("LOGIN"), os.Getenv("PASSWORD")), Host: os.Getenv("HOST") + ":" + os.Getenv("PORT"),
		Path: os.Getenv("DATABASE"), RawQuery: url.Values{"fence.lease": {os.Getenv("LEASE")}, "sslmode": {"disable"}}.Encode(),
	}
	open := map[string]func(ctx context.Context, url string) (pool, error){"pgxpool": byPgxpool, "sql": bySQL}[os.Args[1]]
	if err := story(context.Background(), open, u.String()); err != nil {
		log.Fatal(err)
	}
}

func byPgxpool(ctx context.Context, address string) (pool, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return pool{}, err
	}
	cfg.MaxConns = 1
	p, err := pgxpool.NewWithConfig(ctx, cfg)
	return pool{
		name: "`pgxpool`",
		read: func(ctx context.Context, sql string) (n int, err error) {
			err = p.QueryRow(ctx, sql).Scan(&n)
			return n, err
		},
		write: func(ctx context.Context, sql string) error {
			_, err := p.Exec(ctx, sql)
			return err
		},
	}, err
}

func bySQL(_ context.Context, address string) (pool, error) {
	db, err := sql.Open("pgx", address)
	if err != nil {
		return pool{}, err
	}
	db.SetMaxOpenConns(1)
	return pool{
		name: "`database/sql`",
		read: func(ctx context.Context, sql string) (n int, err error) {
			err = db.QueryRowContext(ctx, sql).Scan(&n)
			return n, err
		},
		write: func(ctx context.Context, sql string) error {
			_, err := db.ExecContext(ctx, sql)
			return err
		},
	}, nil
}

func story(ctx context.Context, open func(context.Context, string) (pool, error), address string) error {
	p, err := open(ctx, address)
	if err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == "github.com/jackc/pgx/v5" {
			fmt.Printf("driver\tpgx %s, %s\n", strings.TrimPrefix(m.Version, "v"), p.name)
		}
	}
	balance, err := p.read(ctx, "SELECT balance FROM orders")
	if err != nil {
		return err
	}
	fmt.Printf("read\t%d\n", balance)
	if !bufio.NewScanner(os.Stdin).Scan() {
		return errors.New("nobody said that another has written")
	}
	for range 8 {
		err := p.write(ctx, fmt.Sprintf("UPDATE orders SET balance = %d", balance+1))
		if err == nil {
			fmt.Println("write\tok")
			return nil
		}
		fmt.Printf("write\t%s\n", strings.Join(strings.Fields(err.Error()), " "))
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}
