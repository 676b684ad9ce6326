package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/access/accessfile"
)

// principals returns the principals of the file; nil without a file.
func (o *serveFlags) principals(gatewayToken string, log *slog.Logger) (*access.Principals, error) {
	if o.principalsFile == "" {
		return nil, nil //nolint:nilnil // nil means that there is no file of principals
	}
	file, err := accessfile.Read(o.principalsFile, gatewayToken)
	if err != nil {
		return nil, usage(fmt.Errorf("--principals %w", err))
	}
	opts, err := file.Options(log)
	if err != nil {
		return nil, usage(fmt.Errorf("--principals %s: %w", o.principalsFile, err))
	}
	return access.New(file.Principals, opts...)
}

// reloadPrincipals applies the file's principals, with the current token of --token-file: all of them or none.
func (o *serveFlags) reloadPrincipals(g *gateway.Gateway, cfg gateway.Config) {
	err := g.SetPrincipals(func() ([]access.Definition, []access.Option, error) {
		token := ""
		if o.tokenFile != "" {
			var err error
			if token, err = readSecret("--token-file", o.tokenFile); err != nil {
				return nil, nil, err
			}
		}
		warnShort(cfg.Logger, token)
		file, err := accessfile.Read(o.principalsFile, token)
		if errors.Is(err, accessfile.ErrUnnamedToken) { // the token is revoked
			cfg.Logger.Warn("SIGHUP: no principal has gateway_token: true, so the token of --token-file belongs to no principal", "file", o.principalsFile)
			err = nil
		}
		if err != nil {
			return nil, nil, err
		}
		opts, err := file.Options(cfg.Logger)
		return file.Principals, opts, err
	})
	if err = o.options.inFlags(err); err != nil { // a field that is not in the file belongs to a flag
		cfg.Logger.Error("SIGHUP: the principals are refused; the previous ones stay", "file", o.principalsFile, "error", oneLine(err.Error()))
	}
}

func newPrincipals(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "principals",
		Short: "Prepare the file of serve --principals",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPrincipalsHash(e), newPrincipalsCheck())
	return cmd
}

func newPrincipalsHash(e env) *cobra.Command {
	return &cobra.Command{
		Use:   "hash",
		Short: "Print the SHA-256 of a bearer token, as the file has it",
		Long: `Print the SHA-256 of the bearer token on standard input, as the file of principals has it.
Use random tokens: a token that can be guessed can be found from its hash.`,
		Example: `  openssl rand -hex 32 > worker.token
  fencegate principals hash < worker.token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readWithin(cmd.Context(), e.stdin, maxToken+2)
			if err != nil {
				return err
			}
			token := strings.TrimSpace(string(text))
			switch {
			case len(token) < minToken || len(token) > maxToken:
				return usage(fmt.Errorf("standard input holds no token of %d to %d characters", minToken, maxToken))
			case strings.ContainsFunc(token, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r > unicode.MaxASCII }):
				return usage(errors.New("the token has spaces, or more than one line, or characters that no header holds"))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), access.DigestOf(token))
			return err
		},
	}
}

// The length limits of a token. A shorter one may be guessed.
const minToken, maxToken = 20, 4096

// warnShort warns of a token that may be guessed; "" means none.
func warnShort(log *slog.Logger, token string) {
	if token != "" && len(token) < minToken {
		log.Warn(fmt.Sprintf("the token of --token-file has fewer than %d characters and may be guessed; make one with: openssl rand -hex 32", minToken))
	}
}

func newPrincipalsCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Read a file of principals as serve does, and say what each may do",
		Example: `  fencegate principals check /etc/fencegate/principals.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			const someToken = "-" // stands for the token of --token-file
			file, err := accessfile.Read(args[0], someToken)
			if errors.Is(err, accessfile.ErrUnnamedToken) {
				file, err = accessfile.Read(args[0], "")
			}
			if err != nil {
				return usage(err)
			}
			if _, err := file.Options(slog.New(slog.DiscardHandler)); err != nil {
				return usage(fmt.Errorf("%s: %w", args[0], err))
			}
			for _, d := range file.Principals {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), d.Name)
				for _, r := range d.Rules {
					verbs := make([]string, len(r.Verbs))
					for i, v := range r.Verbs {
						verbs[i] = string(v)
					}
					_, _ = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimRight("  "+strings.Join(verbs, ",")+" "+r.Resources, " "))
				}
			}
			return nil
		},
	}
}
