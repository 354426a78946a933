package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/internal/termsafe"
	"pwc/ir"
)

// modelChoice chooses among the models of a cache by the target that they are compiled for.
type modelChoice struct{ target string }

func (c *modelChoice) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.target, "target", "", "only models for this `TARGET`: host, cuda:sm_90, or cuda for any GPU")
}

// fits reports whether --target accepts a model for this target.
func (c *modelChoice) fits(target string) bool {
	return c.target == "" || target == c.target || strings.HasPrefix(target, c.target+":")
}

// one resolves a reference among the models for --target. Without --target it returns the reference as it is. The
// result is a reference for [cache.Store.Find].
func (c *modelChoice) one(ctx context.Context, s *cache.Store, ref string) (string, error) {
	if c.target == "" {
		return ref, nil
	}
	ids, err := c.all(ctx, s, []string{ref})
	if err != nil {
		return "", err
	}
	if len(ids) > 1 {
		for i := range ids {
			ids[i] = ids[i][:12]
		}
		return "", fmt.Errorf("%s for %s means several models: %s; give the first digits of an id, as pwc cache ls prints them", termsafe.Quote(ref), c.target, strings.Join(ids, ", "))
	}
	return ids[0], nil
}

// all resolves references among the models for --target. Without references it returns all models for it. Without
// --target it returns the references as they are.
func (c *modelChoice) all(ctx context.Context, s *cache.Store, refs []string) ([]string, error) {
	if c.target == "" {
		return refs, nil
	}
	list, err := s.Modules(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	take := func(ref string) error {
		var others []string
		found := false
		for _, m := range list {
			id := m.ID.String()
			switch {
			case ref != "" && m.Name != ref && (len(ref) < 4 || !strings.HasPrefix(id, ref)):
			case !c.fits(m.Target):
				others = append(others, m.Target)
			default:
				found = true
				if !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
		}
		if found {
			return nil
		}
		what := "the cache has nothing"
		if ref != "" {
			what = "the cache has no model " + termsafe.Quote(ref)
		}
		slices.Sort(others)
		if others = slices.Compact(others); len(others) > 0 {
			return fmt.Errorf("--target %s: %s for this target; it has some for %s", c.target, what, strings.Join(others, ", "))
		}
		return fmt.Errorf("--target %s: %s for this target: %w", c.target, what, cache.ErrNotFound)
	}
	if len(refs) == 0 {
		refs = []string{""}
	}
	for _, ref := range refs {
		if err := take(ref); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// tellApart returns, by id, the differences of models that have the same name and target.
func tellApart(ctx context.Context, s *cache.Store, list []cache.ModuleInfo) map[string]string {
	groups := map[[2]string][]cache.ModuleInfo{}
	for _, m := range list {
		groups[[2]string{m.Name, m.Target}] = append(groups[[2]string{m.Name, m.Target}], m)
	}
	out := map[string]string{}
	for _, group := range groups {
		if len(group) < 2 {
			continue
		}
		facts := make([][]string, len(group))
		for i, m := range group {
			facts[i] = make([]string, modelFacts)
			if d, err := s.Show(ctx, m.ID.String()); err == nil { // pwc cache verify reports a damaged model
				facts[i] = factsOf(d)
			}
		}
		for i, m := range group {
			var parts []string
			for k, fact := range facts[i] {
				differs := slices.ContainsFunc(facts, func(other []string) bool { return other[k] != fact })
				if fact != "" && differs && (k < modelFacts-1 || len(parts) == 0) { // the last fact, the text's hash, only if no other differs
					parts = append(parts, fact)
				}
			}
			out[m.ID.String()] = strings.Join(parts, ", ")
		}
	}
	return out
}

// modelFacts is the number of facts that factsOf returns.
const modelFacts = 6

// factsOf returns facts in which models of one name may differ: dtype, longest sequence, number of functions, sizes
// that have artifacts, disabled passes, and the hash of the text.
func factsOf(d *cache.ModuleDetail) []string {
	facts := make([]string, modelFacts)
	if m, err := ir.Parse("computation_graph.ir", d.Graph); err == nil {
		facts[0] = modelDType(m)
		if m.Context > 0 {
			facts[1] = fmt.Sprintf("context %d", m.Context)
		}
		facts[2] = plural(int64(len(m.Funcs)), "function")
	}
	shapes, passes := map[string]bool{}, map[string]bool{}
	for _, e := range d.Found {
		if e == nil {
			continue
		}
		if _, sizes, ok := strings.Cut(e.Key.Shape, "="); ok {
			shapes[sizes] = true
		}
		if _, without, ok := strings.Cut(e.Key.Pipeline, " without "); ok {
			passes["without "+without] = true
		}
	}
	facts[3] = strings.Join(slices.Sorted(maps.Keys(shapes)), " ")
	if facts[3] != "" {
		facts[3] = "sizes " + facts[3]
	}
	facts[4] = strings.Join(slices.Sorted(maps.Keys(passes)), " ")
	facts[5] = fmt.Sprintf("text %x", d.Hash[:4])
	return facts
}
