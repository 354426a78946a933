package serve

import (
	"net/http"
	"slices"

	"pwc/runner"
)

// modelObject is a model as GET /v1/models lists it.
type modelObject struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Created   int64  `json:"created"`
	OwnedBy   string `json:"owned_by"`
	MaxLength int    `json:"max_model_len"` // tokens of prompt and answer, as vLLM names it
}

func (s *Server) modelObject() modelObject {
	return modelObject{ID: s.o.Model, Object: "model", Created: s.started.Unix(), OwnedBy: "pwc", MaxLength: s.o.Runner.Plan().MaxLength}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	s.writeJSON(w, http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{s.modelObject()}})
	return nil
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) error {
	if err := s.checkModel(r.PathValue("model")); err != nil {
		return err
	}
	s.writeJSON(w, http.StatusOK, s.modelObject())
	return nil
}

// tokenize answers POST /tokenize: the ids of a text.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Model   string `json:"model"`
		Prompt  string `json:"prompt"`
		Special *bool  `json:"add_special_tokens"` // nil: true
	}
	if e := decode(w, r, s.o.MaxBody, &q); e != nil {
		return e
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	ids := s.o.Tokenizer.Encode(q.Prompt, q.Special == nil || *q.Special)
	s.writeJSON(w, http.StatusOK, struct {
		Tokens    []int32 `json:"tokens"`
		Count     int     `json:"count"`
		MaxLength int     `json:"max_model_len"`
	}{append([]int32{}, ids...), len(ids), s.o.Runner.Plan().MaxLength})
	return nil
}

// detokenize answers POST /detokenize: the text of ids.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Model  string  `json:"model"`
		Tokens []int32 `json:"tokens"`
	}
	if e := decode(w, r, s.o.MaxBody, &q); e != nil {
		return e
	}
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	if i := slices.IndexFunc(q.Tokens, func(id int32) bool { return id < 0 || int(id) >= s.o.Tokenizer.Size() }); i >= 0 {
		return badRequest("tokens", "tokens[%d]: %d is not in [0, %d)", i, q.Tokens[i], s.o.Tokenizer.Size())
	}
	s.writeJSON(w, http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{s.o.Tokenizer.Decode(q.Tokens, true)})
	return nil
}

// live answers GET /live, which the page polls: the state of the engine.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	stats := s.o.Runner.Stats()
	s.writeJSON(w, http.StatusOK, struct {
		Model     string       `json:"model"`
		Chat      bool         `json:"chat"` // the server has a chat template
		MaxLength int          `json:"max_model_len"`
		Stats     runner.Stats `json:"stats"`
	}{s.o.Model, s.o.Template != nil, s.o.Runner.Plan().MaxLength, stats})
	return nil
}
